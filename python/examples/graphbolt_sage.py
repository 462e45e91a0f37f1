"""GraphSAGE by GraphBolt's pipeline over a graph of lodestore.

python graphbolt_sage.py GRAPH
"""

from __future__ import annotations

import sys
from typing import Any

import dgl.graphbolt as gb
import torch
import torch.nn.functional as F
from dgl.nn import SAGEConv

import lodestore
import lodestore.graphbolt as lgb


class Sage(torch.nn.Module):
    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [SAGEConv(width, 64, "mean"), SAGEConv(64, n_classes, "mean")]
        )

    def forward(self, blocks: Any, x: Any) -> Any:
        hidden = self.layers[0](blocks[0], x).relu()
        return self.layers[1](blocks[1], hidden)


def main(path: str) -> None:
    torch.manual_seed(7)
    graph = lodestore.open(path)
    train = torch.from_numpy(graph.split("train"))
    items = gb.ItemSampler(gb.ItemSet(train, names="seed_nodes"), batch_size=256, shuffle=True)
    sampled = items.sample_neighbor(lgb.sampling_graph(graph), [10, 5])
    fetched = sampled.fetch_feature(lgb.feature_store(graph), node_feature_keys=["feat", "label"])
    loader = gb.DataLoader(fetched, num_workers=0)
    model = Sage(graph["feat"].width, int(graph["label"][:].max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        for batch in loader:
            out = model(batch.blocks, batch.node_features["feat"])
            # Rows of width 1 have a second dimension here.
            labels = batch.node_features["label"][: len(out), 0]
            loss = F.cross_entropy(out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
