"""Features, edges and a feature store for GraphBolt. Imported on use, since it imports dgl."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import dgl.graphbolt as gb
import numpy as np
import torch
from torch import Tensor

from ._lodestore import Future, Graph
from .torch import as_array, as_ids, empty, gather

__all__ = ["Feature", "feature_store", "sampling_graph"]


class Feature(gb.Feature):  # type: ignore[misc]
    """A tensor of a graph as a feature: `feature.read(ids)`; a row of width 1 has the shape (1,).

    Rows come in the main process: pass it to `fetch_feature`, whatever workers sample.
    """

    def __init__(self, graph: Graph, tensor: str) -> None:
        super().__init__()
        self.tensor = graph[tensor]
        self.graph = graph

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Returns the rows of `ids` (int32, int64) on their device; None: all rows, on the CPU."""
        if ids is None:
            ids = torch.arange(self.graph.nodes)
        is_cuda = ids.device.type == "cuda"
        rows = gather(self.graph, self.tensor.name, ids, pin=is_cuda)
        return self._shaped(rows).to(ids.device, non_blocking=is_cuda)

    def read_async(self, ids: Tensor) -> Iterator[Any]:
        """Yields one object, whose `wait()` returns the rows of `ids` on their device."""
        rows = empty(self.graph, self.tensor.name, len(ids), pin=ids.device.type == "cuda")
        future = self.graph.submit(self.tensor.name, as_ids(ids), out=as_array(rows))
        yield _Rows(future, self._shaped(rows), ids.device)

    def read_async_num_stages(self, ids_device: Any) -> int:
        """Returns the number of objects that `read_async` yields."""
        return 1

    def size(self) -> torch.Size:
        """Returns the shape of a row."""
        return torch.Size([self.tensor.width])

    def count(self) -> int:
        """Returns the number of rows."""
        return self.graph.nodes

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Puts rows; they are visible after `graph.commit()`. ids None: all rows."""
        if ids is None:
            ids = torch.arange(self.graph.nodes)
        if self.tensor.width == 1:
            value = value.reshape(-1)
        self.graph.put(self.tensor.name, as_ids(ids), as_array(value.detach().cpu()))

    def metadata(self) -> dict[str, str]:
        """Returns the metadata of the feature, of which there is none."""
        return {}

    def pin_memory_(self) -> Feature:
        """Does nothing but warn: rows stay in the graph's files or at its servers."""
        warnings.warn("rows of lodestore are not pinned; each read pins its own", stacklevel=2)
        return self

    def is_pinned(self) -> bool:
        """Returns False."""
        return False

    def to(self, device: Any) -> Feature:
        """Does nothing but warn for "pinned"; rows come on the device of their ids."""
        if device == "pinned":
            return self.pin_memory_()
        warnings.warn("rows of lodestore come on the device of their ids", stacklevel=2)
        return self

    def read_into_memory(self) -> Any:
        """Returns a feature of all rows in memory."""
        return gb.TorchBasedFeature(self.read())

    def _shaped(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), self.tensor.width)

    def __repr__(self) -> str:
        return f"Feature({self.tensor!r})"


class _Rows:
    """Rows in flight, as GraphBolt awaits them."""

    def __init__(self, future: Future, rows: Tensor, device: torch.device) -> None:
        self.future, self.rows, self.device = future, rows, device

    def wait(self) -> Tensor:
        self.future.result()
        return self.rows.to(self.device)


def feature_store(graph: Graph) -> Any:
    """Returns a `gb.BasicFeatureStore` of all tensors, with the keys ("node", None, name)."""
    return gb.BasicFeatureStore(
        {("node", None, name): Feature(graph, name) for name in graph.tensors}
    )


def sampling_graph(graph: Graph) -> Any:
    """Returns a `gb.FusedCSCSamplingGraph` of the edges in memory.

    Its edge attribute `gb.ORIGINAL_EDGE_ID` is the position of an edge in `Graph.csc`.
    """
    colptr, row = graph.csc()
    edge_ids = torch.from_numpy(np.arange(len(row)))
    return gb.fused_csc_sampling_graph(
        torch.from_numpy(colptr),
        torch.from_numpy(row),
        edge_attributes={gb.ORIGINAL_EDGE_ID: edge_ids},
    )
