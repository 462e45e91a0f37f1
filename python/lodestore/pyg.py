"""PyG over a graph of lodestore: features, edges, a sampler and a loader.

Neither pyg-lib nor torch-sparse is needed: the sampler is lodestore's. Imported on use, since it
imports torch.
"""

from __future__ import annotations

import copy
import time
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_geometric.data
import torch_geometric.loader
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler
from torch_geometric.data import TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from ._lodestore import Future, Graph, TensorWriter, _available_memory
from ._lodestore import Tensor as GraphTensor
from .errors import DtypeError, ShapeError, StoreError
from .torch import as_array, as_tensor, batch_seed, gather

__all__ = ["FeatureStore", "GraphStore", "NeighborLoader", "NeighborSampler", "inference"]


class FeatureStore(torch_geometric.data.FeatureStore):  # type: ignore[misc]
    """Tensors of a graph under PyG's names: `attrs` maps these to the tensors' own."""

    def __init__(self, graph: Graph, attrs: Mapping[str, str] | None = None) -> None:
        super().__init__()
        usual = {"x": "feat", "y": "label"}
        if attrs is None:
            attrs = {name: tensor for name, tensor in usual.items() if tensor in graph}
        for tensor in attrs.values():
            graph[tensor]
        self.graph = graph
        self.attrs = dict(attrs)

    def _name(self, attr: TensorAttr) -> str:
        if attr.group_name is not None or attr.attr_name not in self.attrs:
            raise KeyError(f"no attribute {attr.attr_name!r}; there are: {', '.join(self.attrs)}")
        return self.attrs[attr.attr_name]

    def _ids(self, name: str, index: Any) -> Any:
        if isinstance(index, Tensor):
            if index.dtype == torch.bool:
                index = index.nonzero().view(-1)
            return index.detach().cpu().numpy()
        if index is None or isinstance(index, slice):
            nodes = self.graph.nodes
            ids = np.arange(nodes)[index if isinstance(index, slice) else slice(None)]
            tensor = self.graph[name]
            n_bytes = len(ids) * tensor.width * tensor.dtype.itemsize
            if n_bytes > _available_memory() // 2:
                raise MemoryError(
                    f"{len(ids):,} rows of {name} take {n_bytes:,} bytes, more than half of the "
                    "free memory; take them in parts"
                )
            return ids
        return index

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        name = self._name(attr)
        if isinstance(attr.index, int):
            return torch.from_numpy(np.array(self.graph[name][attr.index]))
        return gather(self.graph, name, self._ids(name, attr.index))

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        """Puts rows; rows of all nodes by a new name become a new tensor."""
        rows = torch.as_tensor(tensor).detach().cpu().contiguous()
        is_whole = attr.index is None or (
            isinstance(attr.index, slice) and attr.index == slice(None)
        )
        is_new = attr.attr_name not in self.attrs and attr.attr_name not in self.graph
        if is_new and attr.group_name is None and is_whole:
            with new_tensor(self.graph, attr.attr_name, rows) as writer:
                writer.write(0, as_array(rows))
            self.attrs[attr.attr_name] = attr.attr_name
            return True
        name = self._name(attr)
        self.graph.put(name, self._ids(name, attr.index), as_array(rows))
        return True

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Puts rows, which are visible after `graph.commit()`."""
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return False

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        if attr.attr_name not in self.attrs:
            return None
        return self.graph[self.attrs[attr.attr_name]].shape

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Returns new objects: PyG's loaders write into them."""
        return [TensorAttr(group_name=None, attr_name=name) for name in self.attrs]


def new_tensor(graph: Graph, name: str, rows: Tensor) -> TensorWriter:
    """Begins a tensor of the type and width of `rows`."""
    if rows.ndim not in (1, 2):
        raise ShapeError(f"{name}: expected shape (n,) or (n, width), found {tuple(rows.shape)}")
    width = 1 if rows.ndim == 1 else rows.shape[1]
    return graph.new_tensor(name, str(rows.dtype).removeprefix("torch."), width)


class GraphStore(torch_geometric.data.GraphStore):  # type: ignore[misc]
    """The edges of a graph; PyG's own samplers copy them into memory.

    dtype: of both arrays, torch.int64 or torch.int32; pyg-lib alone takes the latter.
    """

    def __init__(self, graph: Graph, dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        if dtype not in (torch.int64, torch.int32):
            raise DtypeError(f"edges are torch.int64 or torch.int32, found {dtype}")
        self.graph, self.dtype = graph, dtype

    def _attr(self) -> EdgeAttr:
        size = (self.graph.nodes, self.graph.nodes)
        return EdgeAttr(edge_type=None, layout=EdgeLayout.CSC, is_sorted=True, size=size)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError("edges are imported with the graph, and cannot be put")

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.layout != EdgeLayout.CSC or edge_attr.edge_type is not None:
            return None
        if self.dtype == torch.int32 and self.graph.edges > torch.iinfo(torch.int32).max:
            raise DtypeError(f"{self.graph.edges:,} edges have no torch.int32 positions")
        colptr, row = self.graph.csc("int32" if self.dtype == torch.int32 else "int64")
        return torch.from_numpy(row), torch.from_numpy(colptr).to(self.dtype)

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        return False

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        return [self._attr()]


class NeighborSampler(BaseSampler):  # type: ignore[misc]
    """lodestore's sampler for PyG's loaders: equal batches for any number of workers.

    A sample depends on `seed`, `epoch` and the seed nodes of the batch alone.
    """

    def __init__(self, graph: Graph, num_neighbors: Sequence[int], *, seed: int = 0) -> None:
        self.sampler = graph.sampler(list(num_neighbors))
        self.seed = seed
        # In shared memory: persistent workers see its changes under every start method.
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def copy(self) -> NeighborSampler:
        """Returns a sampler with an epoch of its own."""
        sampler = copy.copy(self)
        sampler.epoch = self.epoch.clone().share_memory_()
        return sampler

    def batch_seed(self, nodes: Any) -> int:
        """Returns the seed of a batch, 64 bits."""
        return batch_seed(self.seed, int(self.epoch[0]), nodes)

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Samples around the nodes of `index`.

        A seed node that comes again gets a place and the edges of its first place again, so that
        each seed has its output.
        """
        if index.time is not None or getattr(index, "input_type", None) is not None:
            raise NotImplementedError("seed nodes with times or types are not sampled")
        nodes = index.node.detach().cpu().numpy()
        first = np.sort(np.unique(nodes, return_index=True)[1])
        drawn = self.sampler.sample(nodes[first], seed=self.batch_seed(nodes))
        if len(first) < len(nodes):
            drawn = _with_repeats(nodes, first, drawn)
        node, row, col, edge, n_nodes, n_edges = drawn
        return SamplerOutput(
            node=torch.from_numpy(node),
            row=torch.from_numpy(row),
            col=torch.from_numpy(col),
            edge=torch.from_numpy(edge),
            batch=None,
            num_sampled_nodes=n_nodes,
            num_sampled_edges=n_edges,
            metadata=(index.input_id, None),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        raise NotImplementedError("edges are not sampled; sample around nodes")


def _with_repeats(nodes: Any, first: Any, drawn: Any) -> Any:
    """Returns what was drawn around `nodes[first]`, the distinct seeds, for all of `nodes`."""
    node, row, col, edge, n_nodes, n_edges = drawn
    n_repeats = len(nodes) - len(first)
    # The seeds keep their places; the others follow.
    at = np.arange(len(node)) + n_repeats
    at[: len(first)] = first
    place = dict(zip(nodes[first].tolist(), range(len(first)), strict=True))
    repeats = np.setdiff1d(np.arange(len(nodes)), first)
    of_repeat = np.array([place[seed] for seed in nodes[repeats].tolist()])
    # The edges into seeds are those of the first hop, and come first.
    hop = n_edges[0]
    order = np.argsort(col[:hop], kind="stable")
    counts = np.bincount(col[:hop], minlength=len(first))
    starts = np.cumsum(counts) - counts
    copies = np.concatenate([order[starts[seed] :][: counts[seed]] for seed in of_repeat])
    ends = np.repeat(repeats, counts[of_repeat])

    def grown(values: Any, new: Any) -> Any:
        return np.concatenate([values[:hop], new.astype(values.dtype), values[hop:]])

    return (
        np.concatenate([nodes.astype(node.dtype), node[len(first) :]]),
        grown(at[row], at[row[copies]]),
        grown(at[col], ends),
        grown(edge, edge[copies]),
        [n_nodes[0] + n_repeats, *n_nodes[1:]],
        [hop + len(copies), *n_edges[1:]],
    )


#: Arguments of PyG's loader that are not supported, with the values at which they ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "replace": (False,),
    "directed": (True,),
    "disjoint": (False,),
    "subgraph_type": ("directional",),
    "temporal_strategy": ("uniform",),
    "time_attr": (None,),
    "input_time": (None,),
    "weight_attr": (None,),
    "neighbor_sampler": (None,),
    "filter_per_worker": (None, False),
}


def _refuse_unsupported(loader: dict[str, Any]) -> None:
    """Takes out arguments that ask for nothing. Raises NotImplementedError for those that do."""
    for name, idle in _UNSUPPORTED.items():
        if name not in loader:
            continue
        value = loader.pop(name)
        asked = getattr(value, "value", value)
        if not any(asked is one or (isinstance(one, str) and asked == one) for one in idle):
            raise NotImplementedError(
                f"{name}={asked!r} is not supported: neighbours are drawn uniformly, without "
                "replacement, one directional subgraph for a batch"
            )
    loader.pop("is_sorted", None)


def _seed_nodes(graph: Graph, input_nodes: Any) -> Tensor:
    """Returns seed nodes as PyG's loader understands them: ids, a mask, or None for all nodes."""
    if input_nodes is None:
        return torch.arange(graph.nodes)
    if isinstance(input_nodes, str) or (
        isinstance(input_nodes, tuple) and input_nodes and isinstance(input_nodes[0], str)
    ):
        raise NotImplementedError(f"input_nodes={input_nodes!r}: nodes have one type; give ids")
    if not torch.is_tensor(input_nodes):
        array = np.asarray(input_nodes)
        if array.dtype.kind not in "biuf":
            found = type(input_nodes).__name__
            raise DtypeError(f"input_nodes are ids, a mask or None, found {found}")
        input_nodes = array.astype(array.dtype.newbyteorder("="), copy=False)
    nodes = torch.as_tensor(input_nodes)
    if nodes.dtype == torch.bool:
        if tuple(nodes.shape) != (graph.nodes,):
            raise ShapeError(
                f"a mask has one value for each of {graph.nodes} nodes, found {tuple(nodes.shape)}"
            )
        nodes = nodes.nonzero().view(-1)
    if nodes.ndim != 1:
        raise ShapeError(f"input_nodes have shape (n,), found {tuple(nodes.shape)}")
    if nodes.numel() and nodes.is_floating_point():
        raise DtypeError(f"input_nodes are integers or a mask, found {nodes.dtype}")
    return nodes.to(torch.int64)


@dataclass
class _Place:
    """The place of the newest iterator of a loader, or of the next one where there is none."""

    epoch: int = 1
    batches: int = 0
    newest: object | None = None


@dataclass
class _Counts:
    """What the iterators of a loader have done."""

    batches: int = 0
    rows: int = 0
    wait_seconds: float = 0.0


class NeighborLoader(torch_geometric.loader.NeighborLoader):  # type: ignore[misc]
    """PyG's loader: workers sample, and the main process gathers rows of `window` batches ahead.

    - attrs: PyG's names of tensors, as for FeatureStore.
    - window: most batches whose rows are in flight.
    - together: most of them under one read plan.
    - memory: bytes for rows that are used again, or None.
    - max_bytes: most bytes over the window, the plans and `memory`; None: `memory` and a sixteenth
      of the free memory, at most 1 GiB. The window shrinks to it; one batch is loaded whatever its
      size.
    - input_nodes: ids, a mask over all nodes, or None for all nodes. A seed may come again.
    - seed: makes the neighbourhoods, and with `shuffle=True` the order, unless `generator` or
      `sampler` is given. Both differ from epoch to epoch.
    - loader: arguments of torch's DataLoader, and those of PyG's loader that are supported. Others
      raise NotImplementedError.

    `set_epoch` chooses the next epoch; the first is 1. `state_dict` has the place of the newest
    iterator within its epoch, and `load_state_dict` goes on there: batches before it are sampled
    again, not gathered. A batch whose rows cannot be had stays the next one. Each iterator has an
    epoch, an order and a version of its own, unless `persistent_workers` are shared by all.

    The rows of an epoch are of one version, `version`: the one that is committed when the epoch
    begins. The next epoch has what was committed meanwhile where the graph follows commits (one of
    servers, or opened for writing); memory of another version is emptied.

    Batches have no attributes of edges: index yours by `batch.e_id`, positions in `Graph.csc`.
    """

    def __init__(
        self,
        graph: Graph,
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        *,
        attrs: Mapping[str, str] | None = None,
        seed: int = 0,
        window: int = 16,
        together: int = 8,
        memory: int | None = None,
        max_bytes: int | None = None,
        **loader: Any,
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, found {window}")
        _refuse_unsupported(loader)
        if isinstance(num_neighbors, Mapping) or not isinstance(num_neighbors, Sequence):
            raise NotImplementedError("num_neighbors is a list of one number for each hop")
        if not all(isinstance(number, int | np.integer) for number in num_neighbors):
            raise ValueError(f"num_neighbors are whole numbers, found {list(num_neighbors)}")
        if loader.get("batch_size", 1) is None and loader.get("batch_sampler") is None:
            raise NotImplementedError("batch_size=None: give the number of seeds of a batch")
        self._is_ordered = bool(loader.get("shuffle")) and loader.get("generator") is None
        self._place, self._counts = _Place(), _Counts()
        store = FeatureStore(graph, attrs)
        self._row_bytes = sum(
            graph[name].width * graph[name].dtype.itemsize for name in store.attrs.values()
        )
        self._bounds: dict[str, Any] = {
            "window": window * max(1, len(store.attrs)),
            "together": together,
            "memory": memory,
            "max_bytes": max_bytes,
            "tensors": list(dict.fromkeys(store.attrs.values())),
        }
        self._graph, self._pinned = graph, graph.at()
        self._queue = self._pinned.queue(**self._bounds)
        self.window = window
        super().__init__(
            data=(store, GraphStore(graph)),
            num_neighbors=list(num_neighbors),
            input_nodes=_seed_nodes(graph, input_nodes),
            neighbor_sampler=NeighborSampler(graph, num_neighbors, seed=seed),
            filter_per_worker=False,
            **loader,
        )

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch`, 1 or more, the next one."""
        if epoch < 1:
            raise ValueError(f"epochs are counted from 1, found {epoch}")
        self._place.epoch, self._place.batches, self._place.newest = epoch, 0, None

    def state_dict(self) -> dict[str, int]:
        """Returns the seed, the epoch, and the batches of it that were handed out."""
        seed = self.node_sampler.seed
        return {"seed": seed, "epoch": self._place.epoch, "batches": self._place.batches}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Makes the next iteration go on after the batches of `state`.

        Raises ValueError for the state of a loader of another seed, or of no loader.
        """
        numbers = {"seed", "epoch", "batches"}
        if not isinstance(state, Mapping) or not numbers <= state.keys():
            raise ValueError(f"expected a state of `state_dict`, found {state!r}")
        if state["seed"] != self.node_sampler.seed:
            found, here = state["seed"], self.node_sampler.seed
            raise ValueError(f"the state is of seed {found!r}, and the loader has seed {here}")
        self.set_epoch(state["epoch"])
        self._place.batches = state["batches"]

    def __iter__(self) -> Iterator[Any]:
        place = self._place
        if place.newest is not None:
            place.epoch, place.batches = place.epoch + 1, 0
        self.node_sampler.epoch.fill_(place.epoch)
        newest = self._graph.at()
        if newest.version_id != self._pinned.version_id:
            self._pinned, self._queue = newest, newest.queue(**self._bounds)
        return super().__iter__()  # type: ignore[no-any-return]

    @property
    def version(self) -> int:
        """The version of the rows of this epoch, or of the last one."""
        return self._pinned.version

    @property
    def version_id(self) -> str:
        """The same with its commit, as `Graph.version_id` returns it."""
        return self._pinned.version_id

    def stats(self) -> dict[str, float]:
        """Returns the number of batches and of gathered rows, and the seconds spent waiting.

        `rows` counts those of each tensor. `peak_bytes` are the most bytes of rows at once: those
        of the window, of plans, and `memory`. `hit_rows` were found in `memory` and `read_rows`
        were read, each row once for the batches of a plan, since memory was last empty.
        """
        return {
            "batches": self._counts.batches,
            "rows": self._counts.rows,
            "wait_seconds": self._counts.wait_seconds,
            **self._queue.stats(),
        }

    def _get_iterator(self) -> Iterator[Any]:
        return _WindowIterator(self)

    def _of_an_epoch(self) -> NeighborLoader:
        """Returns a loader with a sampler and an order of its own, which refers to no other."""
        # What workers call must refer to no loader that has it: they end with their last reference.
        drawing, view = copy.copy(self), copy.copy(self)
        changed: dict[str, Any] = {"node_sampler": self.node_sampler.copy(), "_iterator": None}
        drawing.__dict__.update(changed)
        del drawing.__dict__["collate_fn"]
        changed["collate_fn"] = types.MethodType(type(self).collate_fn, drawing)
        if self._is_ordered:
            # torch draws the seeds of workers from the loader's generator, at times.
            sampler = RandomSampler(self.dataset, generator=torch.Generator())
            changed["sampler"] = sampler
            if self.batch_sampler is not None:
                batches = BatchSampler(sampler, self.batch_size, self.drop_last)
                changed["batch_sampler"] = batches
        view.__dict__.update(changed)
        return view

    def _begin_epoch(self, epoch: int) -> None:
        """Sets the epoch of the sampler and of the order."""
        self.node_sampler.epoch.fill_(epoch)
        if self._is_ordered:
            self.sampler.generator.manual_seed(batch_seed(self.node_sampler.seed, epoch, []) >> 1)

    def _torch_iterator(self) -> Any:
        # Bypasses PyG's own iterator, which gathers the rows of one batch after the other.
        return super(torch_geometric.loader.NodeLoader, self)._get_iterator()

    def _transformed(self, out: SamplerOutput) -> SamplerOutput:
        return self.transform_sampler_output(out) if self.transform_sampler_output else out

    def _rows_of(self, futures: list[Future]) -> list[Tensor]:
        start = time.perf_counter()
        rows = [as_tensor(future.result()) for future in futures]
        if self.pin_memory and torch.cuda.is_available():
            rows = [tensor.pin_memory() for tensor in rows]
        self._counts.wait_seconds += time.perf_counter() - start
        self._counts.rows += sum(len(tensor) for tensor in rows)
        return rows

    def _batch(self, out: SamplerOutput, rows: list[Tensor]) -> Any:
        """Returns what PyG's own code makes of a sample and its rows."""
        stores, transform = self.data, self.transform_sampler_output
        ready = _BatchRows(stores[0], rows)
        self.__dict__.update(data=(ready, stores[1]), transform_sampler_output=None)
        try:
            return self.filter_fn(out)
        finally:
            self.__dict__.update(data=stores, transform_sampler_output=transform)


class _BatchRows(torch_geometric.data.FeatureStore):  # type: ignore[misc]
    """The gathered rows of one batch."""

    def __init__(self, store: FeatureStore, rows: list[Tensor]) -> None:
        super().__init__()
        self.store, self.rows = store, rows

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return self.store.get_all_tensor_attrs()

    def multi_get_tensor(self, attrs: list[TensorAttr], convert_type: bool = False) -> list[Tensor]:
        return self.rows

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        return self.rows[list(self.store.attrs).index(attr.attr_name)]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        return False

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return False

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return tuple(self._get_tensor(attr).shape)


class _BatchInFlight:
    """A sampled batch; its rows are on their way, or are to be asked for."""

    def __init__(self, out: SamplerOutput, row_bytes: int) -> None:
        self.out = out
        self.futures: list[Future] | None = None
        sample = (out.node, out.row, out.col, out.edge)
        self.n_bytes = len(out.node) * row_bytes + sum(part.nbytes for part in sample)


class _WindowIterator:
    """The batches of an epoch in order, with the rows of later ones in flight."""

    def __init__(self, loader: NeighborLoader) -> None:
        # Not the loader itself, which may have this iterator.
        self.view = loader._of_an_epoch()
        self._begin(loader)
        self.sampled = self.view._torch_iterator()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Starts the next epoch of workers that persist."""
        self._begin(loader)
        self.sampled._reset(self.view, first_iter)

    def _begin(self, loader: NeighborLoader) -> None:
        place = loader._place
        self.view._begin_epoch(place.epoch)
        self.queue = loader._queue
        self.in_flight: deque[_BatchInFlight] = deque()
        self.is_exhausted = False
        self.n_skipped = place.batches
        self.key = place.newest = object()

    def __iter__(self) -> _WindowIterator:
        return self

    def __next__(self) -> Any:
        for _ in range(self.n_skipped):
            next(self.sampled)
            self.n_skipped -= 1
        # Two submissions per batch until the window is full, so that the first batch is fast.
        for _ in range(2):
            if not self._submit_next():
                break
        if not self.in_flight:
            raise StopIteration
        first = self.in_flight[0]
        self._submit(first)
        try:
            rows = self.view._rows_of(first.futures or [])
            batch = self.view._batch(first.out, rows)
        except BaseException:
            # Its rows are asked for again.
            first.futures = None
            raise
        self.in_flight.popleft()
        self.view._counts.batches += 1
        place = self.view._place
        if place.newest is self.key:
            place.batches += 1
        return batch

    def _submit_next(self) -> bool:
        """Submits one more batch if the window has room for it."""
        if not self.in_flight or self.in_flight[-1].futures is not None:
            if self.is_exhausted or len(self.in_flight) >= self.view.window:
                return False
            try:
                out = self.view._transformed(next(self.sampled))
            except StopIteration:
                self.is_exhausted = True
                return False
            self.in_flight.append(_BatchInFlight(out, self.view._row_bytes))
        n_bytes = sum(batch.n_bytes for batch in self.in_flight)
        if len(self.in_flight) > 1 and n_bytes > self.queue.window_bytes:
            return False
        self._submit(self.in_flight[-1])
        return True

    def _submit(self, batch: _BatchInFlight) -> None:
        if batch.futures is None:
            ids = batch.out.node.numpy()
            names = self.view.data[0].attrs.values()
            batch.futures = [self.queue.submit(name, ids) for name in names]


@torch.no_grad()
def inference(
    model: Any,
    graph: Graph,
    *,
    tensor: str = "feat",
    out: str = "h{layer}",
    batch_size: int = 1024,
    device: Any = "cpu",
    window: int = 4,
) -> GraphTensor:
    """Computes each layer of a model for all nodes, out of core; returns the last layer's tensor.

    The rows of a layer become a tensor of the graph, from which the next layer reads. It is named
    `out` with the layer's number, from 1 on. All neighbours count. Memory holds `window` batches of
    `batch_size` nodes and their neighbours.

    - model: one of torch_geometric.nn's basic models (GraphSAGE, GCN, GAT, ...), or a module with
      `num_layers` and `inference_per_layer(layer, x, edge_index, batch_size)`.
    - graph: opened with `writable=True`.
    - tensor: the input of the first layer.

    Raises ReadOnlyError, UnknownTensorError; StoreError where a name of `out` is taken, before
    anything is computed. A tensor is added when all of its rows are there: after an exception the
    graph has the layers before it.
    """
    mode = getattr(model, "jk_mode", None)
    if mode not in (None, "last"):
        raise ValueError(f"layers can be computed one by one for jk 'last' or None, found {mode!r}")
    graph[tensor]
    names = [out.format(layer=layer) for layer in range(1, model.num_layers + 1)]
    if len(set(names)) < len(names):
        raise ValueError(f"out={out!r} names several layers alike; put {{layer}} into it")
    for name in names:
        if name in graph:
            raise StoreError(f"the graph has a tensor {name}; give another name by out=")
    was_training = model.training
    model.eval()
    try:
        for layer, name in enumerate(names):
            _infer_layer(model, graph, layer, (tensor, name), (batch_size, window), device)
            tensor = name
    finally:
        model.train(was_training)
    return graph[tensor]


def _infer_layer(
    model: Any,
    graph: Graph,
    layer: int,
    names: tuple[str, str],
    sizes: tuple[int, int],
    device: Any,
) -> None:
    nodes = torch.arange(graph.nodes)
    attrs = {"x": names[0]}
    batches = iter(
        NeighborLoader(
            graph, [-1], nodes, attrs=attrs, batch_size=sizes[0], window=sizes[1], shuffle=False
        )
    )

    def rows_of(batch: Any) -> Tensor:
        x, edge_index = batch.x.to(device), batch.edge_index.to(device)
        found = model.inference_per_layer(layer, x, edge_index, batch.batch_size)
        if len(found) != batch.batch_size:
            raise ShapeError(f"layer {layer}: {len(found)} rows of {batch.batch_size} nodes")
        return found.cpu().contiguous()  # type: ignore[no-any-return]

    rows, first = rows_of(next(batches)), 0
    with new_tensor(graph, names[1], rows) as writer:
        writer.write(first, as_array(rows))
        for batch in batches:
            first += len(rows)
            rows = rows_of(batch)
            writer.write(first, as_array(rows))
