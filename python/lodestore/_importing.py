"""Imports of files and arrays."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from . import _lodestore
from ._inputs import File, RowsFile, graph_input, load_torch, parquet_edges, parquet_rows
from ._lodestore import Graph, import_files
from .errors import DtypeError, Error, ShapeError, StoreError

_SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
_NONE = 255
# Edges, and rows, copied at a time.
_CHUNK = 1 << 22
_CHUNK_ROWS = 1 << 12


def import_graph(
    out: str | PathLike[str],
    *,
    edges: Any = None,
    tensors: Mapping[str, Any] | None = None,
    dataset: tuple[str, str | PathLike[str]] | None = None,
    data: Any = None,
    nodes: int | None = None,
    undirected: bool = False,
    parts: int = 1,
    partitioner: str = "spring",
    refine: int | None = None,
    order: str = "greedy",
    dtypes: Mapping[str, str] | None = None,
    codec: str = "auto",
    nan: str = "refuse",
    splits: Mapping[str, Any] | None = None,
    edge_ids: bool = False,
    edge_weights: Any = None,
    progress: bool | Callable[[str, int, int], object] | None = None,
) -> Graph:
    """Imports a graph to the folder `out`, which must not exist, and opens it.

    - edges: a path or several, an integer array of shape (2, E) or (E, 2), or a pair of arrays
      (source, destination). Paths are .npy of shape (E, 2), text, .u32, .u64, .parquet of two
      columns or FILE:SOURCE,DESTINATION, and .pt.
    - tensors: by name, one row per node: a path, an array of shape (nodes,) or (nodes, width), or a
      sparse matrix of scipy or torch in CSR form. Paths are .npy, .npz, .safetensors, .parquet,
      .pt, or FILE:ARRAY, FILE:COLUMN, FILE:KEY.
    - dataset: ("ogb", DIR) or ("graphbolt", DIR) instead of edges: the folder of a dataset of the
      Open Graph Benchmark, or of GraphBolt with its metadata.yaml.
    - data: a `torch_geometric.data.Data` or a homogeneous `dgl.DGLGraph` instead of edges. It has
      tensors of nodes, `x` and `y` by the names `feat` and `label`, and the masks of its splits.
    - splits: lists of node ids, or masks, by "train", "val" and "test"; they become the tensor
      `split`.
    - dtypes: types of stored elements by tensor, such as {"feat": "f16"}; those of the input unless
      given.
    - nan: "refuse" or "keep".
    - edge_weights: a path of an .npy file, or an array of shape (E,), float32.
    - progress: True shows tqdm's bars where tqdm is installed; or f(stage, done, total).

    Arrays are written to a folder beside `out` first, which is removed at the end. Parquet files
    are read by pyarrow, and .pt files by torch, which unpickles nothing but tensors.

    Raises ShapeError, DtypeError, StoreError; nothing is left behind.
    """
    if sum(given is not None for given in (edges, dataset, data)) != 1:
        raise ValueError("give either edges=, data= or dataset=")
    if nan not in ("refuse", "keep"):
        raise ValueError(f"nan must be 'refuse' or 'keep', found {nan!r}")
    out = Path(fspath(out)).absolute()
    if out.is_symlink() or out.exists():
        raise StoreError(f"{out} exists already; an import never overwrites, choose another place")
    messages: list[str] = []
    if data is not None:
        found = graph_input(data)
        edges, messages = found.edges, found.left_out
        nodes = found.nodes if nodes is None else nodes
        tensors = {**found.tensors, **(tensors or {})}
        splits = found.splits or None if splits is None else splits
    dtypes = dict(dtypes or {})
    bar = _Bars() if progress is True else None
    call = bar.update if bar else progress if callable(progress) else None
    try:
        with _Scratch(out.parent) as scratch:
            files = [] if edges is None else _edge_files(edges, scratch)
            named = [
                (name, _tensor_file(name, rows, scratch, dtypes))
                for name, rows in (tensors or {}).items()
            ]
            if splits is not None:
                n_nodes = nodes if nodes is not None else _n_rows(tensors)
                named.append(("split", _split_file(splits, n_nodes, scratch)))
            if edge_weights is not None and not _is_path(edge_weights):
                weights = scratch.file("edge_weights")
                np.save(weights, np.asarray(edge_weights, np.float32))
                edge_weights = weights
            imported = import_files(
                out,
                edges=files,
                tensors=named,
                dataset=dataset,
                nodes=nodes,
                undirected=undirected,
                parts=parts,
                partitioner=partitioner,
                refine=refine,
                order=order,
                dtypes=list(dtypes.items()),
                codec=codec,
                keep_nan=nan == "keep",
                edge_ids=edge_ids,
                edge_weights=edge_weights,
                progress=call,
            )
            messages += map(scratch.in_words, imported)
    finally:
        if bar:
            bar.close()
    for message in messages:
        warnings.warn(message, stacklevel=2)
    return _lodestore.open(out)


class _Scratch:
    """A folder of files for an import, which stand for arguments."""

    def __init__(self, parent: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=".lode-", dir=parent)
        self._arguments: dict[Path, str] = {}

    def file(self, argument: str, ending: str = "npy") -> Path:
        """Returns a new path for the array of `argument`."""
        path = Path(self._folder.name) / f"{len(self._arguments)}.{ending}"
        self._arguments[path] = argument
        return path

    def in_words(self, text: str) -> str:
        """Replaces the paths of files by the arguments that they stand for."""
        for path, argument in self._arguments.items():
            text = text.replace(str(path), argument)
        return text.replace("keep NaN on purpose", 'keep NaN on purpose (nan="keep")')

    def __enter__(self) -> _Scratch:
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if isinstance(error, Error):
            error.args = (self.in_words(str(error)), *error.args[1:])
        self._folder.cleanup()


def _is_path(value: Any) -> bool:
    return isinstance(value, str | PathLike)


def _array(name: str, value: Any) -> np.ndarray:
    """Returns an array as it is; one of torch without a copy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asanyarray(value)
    if isinstance(array, np.ma.MaskedArray):
        raise DtypeError(f"{name}: expected an array without a mask; fill it before the import")
    if array.dtype == object:
        raise DtypeError(f"{name}: expected an array of numbers, found {type(value).__name__}")
    return array


def _edge_files(edges: Any, scratch: _Scratch) -> list[Path]:
    if _is_path(edges):
        edges = [edges]
    if isinstance(edges, Sequence) and edges and all(_is_path(edge) for edge in edges):
        return [_edge_file(edge, scratch) for edge in edges]
    return [_save_edges(edges, scratch.file("edges"))]


def _edge_file(edges: Any, scratch: _Scratch) -> Path:
    file = File.of(edges)
    if file is None:
        return Path(fspath(edges))
    out = scratch.file(fspath(edges))
    if not file.is_parquet:
        return _save_edges(load_torch(file), out)
    parquet_edges(file, out)
    return out


def _save_edges(edges: Any, path: Path) -> Path:
    source, destination = _ends(edges)
    for ends in (source, destination):
        if not np.issubdtype(ends.dtype, np.integer):
            raise DtypeError(f"edges: expected integers, found {ends.dtype}")
    if source.shape != destination.shape or source.ndim != 1:
        raise ShapeError(f"edges: ends of shape {source.shape} and {destination.shape}")
    with RowsFile(path, np.int64, (len(source), 2)) as pairs:
        for first in range(0, len(source), _CHUNK):
            part = slice(first, first + _CHUNK)
            pairs.write(np.stack([source[part], destination[part]], axis=1))
    return path


def _ends(edges: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(edges, tuple) and len(edges) == 2:
        return _array("edges", edges[0]), _array("edges", edges[1])
    array = _array("edges", edges)
    if array.ndim == 2 and array.shape == (2, 2):
        raise ShapeError("edges of shape (2, 2) may be either way; give (source, destination)")
    if array.ndim == 2 and array.shape[0] == 2:
        return array[0], array[1]
    if array.ndim == 2 and array.shape[1] == 2:
        return array[:, 0], array[:, 1]
    raise ShapeError(f"edges: expected shape (2, E) or (E, 2), found {array.shape}")


def _tensor_file(name: str, rows: Any, scratch: _Scratch, dtypes: dict[str, str]) -> Path:
    if _is_path(rows):
        file = File.of(rows)
        if file is None:
            return Path(fspath(rows))
        path = scratch.file(fspath(rows))
        if file.is_parquet:
            parquet_rows(file, path)
            return path
        rows = load_torch(file)
    elif (parts := _csr_parts(name, rows)) is not None:
        path = scratch.file(f"tensors[{name!r}]", "npz")
        np.savez(path, format=b"csr", **parts)
        return path
    else:
        path = scratch.file(f"tensors[{name!r}]")
    is_bf16 = str(getattr(rows, "dtype", "")) == "torch.bfloat16"
    dtype: np.dtype[Any] = np.dtype(np.float32)
    if is_bf16:
        dtypes.setdefault(name, "bf16")
    else:
        rows = _array(name, rows)
        dtype = rows.dtype.newbyteorder("<")
    shape = tuple(rows.shape)
    if dtype.kind == "b":
        dtype = np.dtype(np.uint8)
    if len(shape) not in (1, 2):
        raise ShapeError(f"{name}: expected shape (nodes,) or (nodes, width), found {shape}")
    with RowsFile(path, dtype, shape) as saved:
        for first in range(0, len(rows), _CHUNK_ROWS):
            part = rows[first : first + _CHUNK_ROWS]
            saved.write(part.detach().cpu().float().numpy() if is_bf16 else part)
    return path


def _csr_parts(name: str, rows: Any) -> dict[str, Any] | None:
    """Returns the arrays of a sparse matrix in CSR form; None for other values."""
    layout = str(getattr(rows, "layout", ""))
    if layout == "torch.sparse_csr":
        rows = rows.detach().cpu()
        found = (rows.values(), rows.col_indices(), rows.crow_indices())
        data, indices, indptr = (part.numpy() for part in found)
    elif layout.startswith("torch.sparse"):
        raise DtypeError(f"{name}: expected rows in CSR form, found {layout}; use to_sparse_csr()")
    elif hasattr(rows, "tocsr"):
        if rows.format != "csr":
            raise DtypeError(f"{name}: expected CSR form, found {rows.format}; use tocsr()")
        data, indices, indptr = rows.data, rows.indices, rows.indptr
    else:
        return None
    shape = np.array(rows.shape, np.int64)
    return {"data": data, "indices": indices, "indptr": indptr, "shape": shape}


def _n_rows(tensors: Mapping[str, Any] | None) -> int:
    arrays = (rows for rows in (tensors or {}).values() if not _is_path(rows))
    rows = next(arrays, None)
    if rows is None:
        raise ValueError("splits= needs nodes=, or a tensor that is an array")
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def _split_file(splits: Mapping[str, Any], n_nodes: int, scratch: _Scratch) -> Path:
    if not isinstance(splits, Mapping):
        found = type(splits).__name__
        raise ValueError(f"splits: expected a dict by train, val and test, found {found}")
    of_node = np.full(n_nodes, _NONE, np.uint8)
    for name, ids in splits.items():
        if name not in _SPLITS:
            raise ValueError(f"splits are train, val and test, found {name!r}")
        array = _array(f"splits[{name!r}]", ids)
        if array.dtype == bool:
            if array.shape != (n_nodes,):
                raise ShapeError(
                    f"splits[{name!r}]: a mask has one value for each of {n_nodes} nodes, found "
                    f"{array.shape}"
                )
            array = np.flatnonzero(array)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise DtypeError(f"splits[{name!r}]: expected node ids or a mask, found {array.dtype}")
        array = array.astype(np.int64)
        if array.size and (array.min() < 0 or array.max() >= n_nodes):
            raise ShapeError(f"splits[{name!r}]: ids must be from 0 to {n_nodes - 1}")
        if len(np.unique(array)) < len(array):
            raise ShapeError(
                f"splits[{name!r}] names nodes several times; a mask has the type bool"
            )
        if (of_node[array] != _NONE).any():
            raise ShapeError(f"splits[{name!r}] names nodes that another split has too")
        of_node[array] = _SPLITS[name]
    path = scratch.file("splits")
    np.save(path, of_node)
    return path


class _Bars:
    """A tqdm bar for each stage; nothing where tqdm is not installed."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = None
        self._tqdm = tqdm
        self._stage = ""
        self._bar: Any = None

    def update(self, stage: str, done: int, total: int) -> None:
        if self._tqdm is None:
            return
        if stage != self._stage:
            self.close()
            self._stage, self._bar = stage, self._tqdm(desc=stage, total=total or None)
        if total:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
