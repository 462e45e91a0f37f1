"""Times an epoch of GraphBolt over its features in memory and in a file, and over a graph.

    python epoch_graphbolt.py LODE FOLDER [--small] [--make] [--repeats=N]

The arguments, the graph and the batches are those of `epoch.py`. The pipeline samples by
lodestore's sampler, so that the sums of rows of both benches are equal. The features are those of
dgl 2.1, the newest that pip has: its `TorchBasedFeature`, in memory or over a mapped file. The
latter is the meaning of `in_memory: false`. `DiskBasedFeature` is of dgl 2.4, which pip lacks.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dgl.graphbolt as gb
import numpy as np
import torch
from epochs import BATCH, FANOUT, WIDTH, Framework, main

import lodestore
import lodestore.graphbolt as lgb
from lodestore.torch import batch_seed

SOURCES = [
    "GraphBolt, memory",
    "GraphBolt, graph",
    "GraphBolt, graph, cold",
    "GraphBolt, mapped file, cold",
    "GraphBolt, mapped file, MADV_RANDOM, cold",
]


class Sampled(gb.SubgraphSampler):  # type: ignore[misc]
    """Samples as PyG's loader does in the first epoch of `epoch.py`."""

    def __init__(self, datapipe: Any, graph: lodestore.Graph) -> None:
        self.sampler = graph.sampler(FANOUT)
        super().__init__(datapipe)

    def sampling_stages(self, datapipe: Any) -> Any:
        return datapipe.transform(self.sample)

    def sample(self, batch: Any) -> Any:
        seeds = batch.seed_nodes.numpy()
        node, row, col, *_ = self.sampler.sample(seeds, seed=batch_seed(0, 1, seeds))
        batch.input_nodes = torch.from_numpy(node)
        batch.edge_index = torch.from_numpy(np.stack([row, col]))
        return batch


def feature_of(source: str, graph: lodestore.Graph, rows: Path) -> Any:
    if "graph" in source:
        return lgb.Feature(graph, "feat")
    x = np.load(rows, mmap_mode="r+" if "mapped" in source else None)
    if "MADV_RANDOM" in source:
        x._mmap.madvise(mmap.MADV_RANDOM)
    return gb.TorchBasedFeature(torch.from_numpy(x))


def batches(
    source: str, graph: lodestore.Graph, rows: Path, seeds: Any
) -> Iterator[tuple[Any, Any, int]]:
    store = gb.BasicFeatureStore({("node", None, "feat"): feature_of(source, graph, rows)})
    items = gb.ItemSampler(gb.ItemSet(seeds, names="seed_nodes"), batch_size=BATCH)
    fetched = Sampled(items, graph).fetch_feature(store, node_feature_keys=["feat"])
    for batch in gb.DataLoader(fetched, num_workers=0):
        yield batch.node_features["feat"], batch.edge_index, len(batch.seed_nodes)


class Sage(torch.nn.Module):  # type: ignore[misc]
    """GraphSAGE of two layers and the mean, over all edges of a batch as PyG's."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(WIDTH, 64), (64, 8)]
        self.of_node = torch.nn.ModuleList(torch.nn.Linear(*of, bias=False) for of in widths)
        self.of_mean = torch.nn.ModuleList(torch.nn.Linear(*of) for of in widths)

    def forward(self, x: Any, edge_index: Any) -> Any:
        row, col = edge_index
        degrees = torch.bincount(col, minlength=len(x)).clamp(min=1)[:, None]
        for layer, (of_node, of_mean) in enumerate(zip(self.of_node, self.of_mean, strict=True)):
            if layer:
                x = x.relu()
            sums = torch.zeros_like(x).index_add(0, col, x[row])
            x = of_node(x) + of_mean(sums / degrees)
        return x


if __name__ == "__main__":
    main(Framework(__file__, SOURCES, batches, Sage))
