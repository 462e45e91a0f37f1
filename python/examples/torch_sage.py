"""GraphSAGE in plain torch over the batches of a schedule.

python torch_sage.py GRAPH SCHEDULE
"""

from __future__ import annotations

import itertools
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lodestore
import lodestore.torch as ltorch


class Sage(nn.Module):
    """A layer for each block: the node itself and the mean of its sampled in-neighbours."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(n_in, n_out) for n_in, n_out in pairs)
        self.neighbours = nn.ModuleList(nn.Linear(n_in, n_out, bias=False) for n_in, n_out in pairs)

    def forward(self, x: Tensor, blocks: list[tuple[Tensor, Tensor]]) -> Tensor:
        for layer, (indptr, indices) in enumerate(blocks):
            n_destinations = len(indptr) - 1
            mean = torch.segment_reduce(x[indices], "mean", offsets=indptr, initial=0)
            x = self.own[layer](x[:n_destinations]) + self.neighbours[layer](mean)
            if layer < len(blocks) - 1:
                x = F.relu(x)
        return x


def main(path: str, schedule_path: str) -> None:
    torch.manual_seed(1)
    with lodestore.open(path) as graph:
        epochs = 3
        schedule = graph.schedule(
            schedule_path, roots="train", fanout=[10, 5], batch=128, epochs=epochs
        )
        batches = ltorch.ScheduleDataset(graph, schedule, ["feat", "label"])
        n_classes = int(graph["label"][:].max()) + 1
        model = Sage([graph["feat"].width, 32, n_classes])
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for epoch in range(epochs):
            losses = []
            for batch in batches:
                out = model(batch["feat"], batch.blocks)
                loss = F.cross_entropy(out, batch["label"][: batch.n_roots])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
        print(batches.stats())


if __name__ == "__main__":
    main(*sys.argv[1:])
