"""Times an epoch of PyG's loader over tensors in memory, a graph, and `np.memmap`; with and without
training.

    python epoch.py LODE FOLDER [--small] [--make] [--repeats=N]

LODE is the binary. FOLDER takes the graph and its rows and keeps them for the next run: 3.3 GB, or
6 MB with --small, which only checks. --make does no more than fill it. All sources get the same
batches, from lodestore's sampler in the main process, and the sums of their rows are compared.
`epochs.py` says what an epoch is.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric
from epochs import BATCH, FANOUT, WIDTH, Framework, main
from torch_geometric.loader import NeighborLoader

import lodestore
import lodestore.pyg as lpyg

SOURCES = [
    "memory",
    "graph",
    "graph, cold",
    "graph with memory, cold",
    "memmap, cold",
    "memmap, MADV_RANDOM, cold",
]
# Bytes for rows that come again: half of what an epoch has beside its batches.
MEMORY = 48 << 20


class Rows(torch_geometric.data.FeatureStore):  # type: ignore[misc]
    """Rows of a tensor, in memory or mapped."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = x

    def get_all_tensor_attrs(self) -> list[Any]:
        return [torch_geometric.data.TensorAttr(None, "x")]

    def _get_tensor(self, attr: Any) -> Any:
        return self.x[attr.index]

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...]:
        return tuple(self.x.shape)

    def _put_tensor(self, *_: Any) -> bool:
        return False

    def _remove_tensor(self, *_: Any) -> bool:
        return False


def loader_of(source: str, graph: lodestore.Graph, rows: Path, seeds: Any) -> Any:
    if source.startswith("graph"):
        settings: dict[str, Any] = {"attrs": {"x": "feat"}, "batch_size": BATCH, "window": 4}
        memory = MEMORY if "with memory" in source else None
        return lpyg.NeighborLoader(graph, FANOUT, seeds, memory=memory, **settings)
    x = np.load(rows, mmap_mode="c" if source.startswith("memmap") else None)
    if "MADV_RANDOM" in source:
        # Without it the kernel reads around each row as much as its setting of the disk says.
        x._mmap.madvise(mmap.MADV_RANDOM)
    loader = NeighborLoader(
        data=(Rows(torch.from_numpy(x)), lpyg.GraphStore(graph)),
        num_neighbors=FANOUT,
        input_nodes=seeds,
        batch_size=BATCH,
        neighbor_sampler=lpyg.NeighborSampler(graph, FANOUT),
        filter_per_worker=False,
    )
    # Equal seeds: our loader counts its epochs from 1 on.
    loader.node_sampler.epoch[0] = 1
    return loader


def batches(
    source: str, graph: lodestore.Graph, rows: Path, seeds: Any
) -> Iterator[tuple[Any, Any, int]]:
    for batch in loader_of(source, graph, rows, seeds):
        yield batch.x, batch.edge_index, batch.batch_size


def model() -> Any:
    return torch_geometric.nn.GraphSAGE(WIDTH, 64, 2, 8)


if __name__ == "__main__":
    main(Framework(__file__, SOURCES, batches, model))
