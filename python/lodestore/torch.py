"""Rows of a graph as tensors of torch, and batches of a schedule as a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from . import _lodestore
from ._lodestore import Graph, Schedule
from .errors import DtypeError

__all__ = ["Batch", "ScheduleDataset", "gather"]

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "float64": torch.float64,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bfloat16": torch.bfloat16,
    # The bits of bfloat16, where ml_dtypes is not installed.
    "uint16": torch.bfloat16,
}


def as_array(rows: Tensor) -> Any:
    """Returns an array over the memory of a CPU tensor; that of bfloat16 has int16 bits."""
    return (rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows).numpy()


def as_tensor(rows: Any) -> Tensor:
    """Returns a CPU tensor over the memory of an array of rows."""
    dtype = _DTYPES[str(rows.dtype)]
    if dtype == torch.bfloat16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)


def as_ids(ids: Any) -> Any:
    """Returns ids on the CPU; other objects than tensors as they are."""
    return ids.detach().cpu().numpy() if isinstance(ids, Tensor) else ids


def empty(graph: Graph, name: str, n: int, pin: bool = False) -> Tensor:
    """Allocates memory for `n` rows of a tensor.

    In a worker of a DataLoader the memory is shared with the main process, which saves a copy.
    """
    tensor = graph[name]
    dtype = _DTYPES[str(tensor.dtype)]
    shape = (n, *tensor.shape[1:])
    if get_worker_info() is not None and n > 0:
        n_bytes = int(np.prod(shape)) * dtype.itemsize
        storage = torch.UntypedStorage._new_shared(n_bytes)
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload]
    return torch.empty(shape, dtype=dtype, pin_memory=pin and torch.cuda.is_available())


def batch_seed(seed: int, epoch: int, nodes: Any) -> int:
    """Returns the seed of the sample around the nodes of a batch, 64 bits."""
    place = np.array([seed & (2**63 - 1), epoch], np.int64)
    digest = hashlib.blake2b(place.tobytes(), digest_size=8)
    digest.update(np.ascontiguousarray(nodes, np.int64).tobytes())
    return int.from_bytes(digest.digest(), "little")


def gather(
    graph: Graph, tensor: str, ids: Any, out: Tensor | None = None, pin: bool = False
) -> Tensor:
    """Gathers the rows of `ids`, in their order: a CPU tensor (n, width), or (n,) for width 1.

    - ids: a tensor of n integers on any device, an array or a list.
    - out: a contiguous CPU tensor of exactly the shape and dtype of the rows, which is filled and
      returned.
    - pin: allocates pinned memory where CUDA is available.

    Raises IdError, UnknownTensorError, ShapeError, DtypeError, DamagedError.
    """
    ids = as_ids(ids)
    if out is None:
        out = empty(graph, tensor, len(ids), pin)
    elif out.device.type != "cpu" or out.requires_grad:
        raise DtypeError("`out` must be a CPU tensor without a gradient; copy the rows afterwards")
    graph.gather(tensor, ids, out=as_array(out))
    return out


@dataclass(frozen=True)
class Batch:
    """A batch of a schedule: `batch["feat"]` are the rows of its nodes."""

    epoch: int
    index: int
    nodes: Tensor
    """The input nodes, roots first: int64 of shape (n,)."""
    n_roots: int
    blocks: list[tuple[Tensor, Tensor]]
    """(indptr, indices) of each layer, the input layer first, as in `lodestore.Batch.blocks`."""
    rows: dict[str, Tensor]
    """The rows of each tensor: (n, width), or (n,) for width 1."""

    def __getitem__(self, tensor: str) -> Tensor:
        return self.rows[tensor]

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """Returns the batch on another device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Returns the batch in pinned memory; a DataLoader calls it for `pin_memory=True`."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, moved: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(
            self.epoch,
            self.index,
            moved(self.nodes),
            self.n_roots,
            [(moved(indptr), moved(indices)) for indptr, indices in self.blocks],
            {name: moved(rows) for name, rows in self.rows.items()},
        )


class ScheduleDataset(IterableDataset[Batch]):
    """The batches of a schedule with the rows of `tensors`, prepared ahead by lodestore's threads.

    Each iteration yields the rest of the current epoch, so that a loop over epochs goes through the
    schedule once. For a DataLoader pass `batch_size=None` and no workers, which would repeat the
    work of lodestore's threads. pin: rows in pinned memory. iterate: arguments of `Graph.iterate`.
    """

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        tensors: Sequence[str],
        *,
        pin: bool = False,
        **iterate: Any,
    ) -> None:
        self.graph = graph
        self.schedule = schedule
        self.tensors = list(tensors)
        self.pin = pin
        self._n_batches = schedule.batches(iterate.get("worker", 0))
        self._batches = graph.iterate(schedule, self.tensors, **iterate)
        self._newest: object | None = None

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._n_batches

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:
            raise ValueError("num_workers must be 0: lodestore's own threads prepare the batches")
        if len(self._batches) == 0:
            raise ValueError(
                f"all {self.schedule.epochs} epochs of the schedule were iterated; "
                "make a longer schedule"
            )
        this = self._newest = object()
        for _ in range(self._n_batches - self.state_dict()["batch"]):
            if self._newest is not this:
                raise RuntimeError("a later iterator of this dataset has gone on from its place")
            yield self._convert(next(self._batches))

    def state_dict(self) -> dict[str, Any]:
        """Returns the position and the version, for `load_state_dict`."""
        return self._batches.state_dict()

    @property
    def version(self) -> int:
        """The version of all rows: the one that was committed when the dataset was made."""
        return self._batches.version

    def load_state_dict(self, state: dict[str, Any], *, other_version: bool = False) -> None:
        """Resumes at the position `state`.

        other_version: also where `state` is of another version of the rows than this dataset.

        Raises ValueError for another schedule or worker, VersionError for another version.
        """
        self._batches.load_state_dict(state, other_version=other_version)

    def stats(self) -> dict[str, Any]:
        """Returns the counters of `lodestore.Batches.stats`."""
        return self._batches.stats()

    def _convert(self, batch: _lodestore.Batch) -> Batch:
        nodes = torch.from_numpy(batch.nodes)
        rows = {name: empty(self.graph, name, len(nodes), self.pin) for name in self.tensors}
        for name, tensor in rows.items():
            batch.rows(name, out=as_array(tensor))
        blocks = [
            (torch.from_numpy(indptr), torch.from_numpy(indices))
            for indptr, indices in batch.blocks
        ]
        return Batch(batch.epoch, batch.index, nodes, batch.n_roots, blocks, rows)
