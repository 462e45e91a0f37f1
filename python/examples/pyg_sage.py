"""GraphSAGE by PyG's loader over a graph of lodestore.

python pyg_sage.py GRAPH
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import lodestore
import lodestore.pyg as lpyg


def main(path: str) -> None:
    graph = lodestore.open(path)
    loader = lpyg.NeighborLoader(
        graph, [10, 5], graph.split("train"), batch_size=256, shuffle=True, num_workers=2, seed=7
    )
    n_classes = int(graph["label"][:].max()) + 1
    model = GraphSAGE(graph["feat"].width, 64, 2, n_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", loader.stats())


if __name__ == "__main__":
    main(*sys.argv[1:])
