"""Inputs of imports that other packages read: Parquet, files of torch, graphs of PyG and of DGL.

These packages are imported on use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DtypeError, ShapeError, StoreError

# Bytes of the rows, and number of the edges, that are copied at a time.
_PIECE_BYTES = 8 << 20
_PIECE_EDGES = 1 << 20
_TENSORS = {"x": "feat", "y": "label"}
_MASKS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}


@dataclass
class GraphInput:
    """Input of an import from the graph of another package."""

    edges: tuple[Any, Any]
    nodes: int
    tensors: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, np.ndarray] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, key: str, value: Any) -> None:
        """Takes node data: a mask of a split, or a tensor of at most two dimensions."""
        if key in _MASKS and value.ndim == 1:
            mask = value.detach().cpu().numpy()
            self.splits[_MASKS[key]] = np.flatnonzero(mask)
        elif value.ndim in (1, 2) and key not in _MASKS:
            self.tensors[_TENSORS.get(key, key)] = value
        else:
            self.left_out.append(f"{key} of shape {tuple(value.shape)} is left out")


def graph_input(data: Any) -> GraphInput:
    """Reads a `torch_geometric.data.Data` or a `dgl.DGLGraph`."""
    packages = {base.__module__.partition(".")[0] for base in type(data).__mro__}
    if "torch_geometric" in packages:
        return _of_pyg(data)
    if "dgl" in packages:
        return _of_dgl(data)
    found = type(data).__name__
    raise DtypeError(f"data: expected torch_geometric's Data or dgl's DGLGraph, found {found}")


def _of_pyg(data: Any) -> GraphInput:
    if hasattr(data, "node_types"):
        raise _several_types(data.node_types)
    if getattr(data, "edge_index", None) is None:
        raise ShapeError("data: it has no edge_index; convert adj_t by torch_geometric.utils")
    found = GraphInput((data.edge_index[0], data.edge_index[1]), int(data.num_nodes))
    for key in data.keys():  # noqa: SIM118, it is not a mapping
        if key == "edge_index":
            continue
        if hasattr(data[key], "detach") and data.is_node_attr(key):
            found.add(key, data[key])
        elif data[key] is not None and key != "num_nodes":
            found.left_out.append(f"{key} is left out: only tensors of nodes are imported")
    return found


def _of_dgl(graph: Any) -> GraphInput:
    if not graph.is_homogeneous:
        raise _several_types(graph.ntypes)
    found = GraphInput(graph.edges(order="eid"), graph.num_nodes())
    for key, value in graph.ndata.items():
        found.add(key, value)
    found.left_out += [f"{key} of edges is left out" for key in graph.edata]
    return found


def _several_types(names: Sequence[str]) -> DtypeError:
    types = ", ".join(map(str, names))
    return DtypeError(f"data: only graphs of one type of nodes can be imported, found {types}")


@dataclass(frozen=True)
class File:
    """A file that this module reads, and what is taken from it: `FILE` or `FILE:MEMBER`."""

    path: Path
    member: str | None

    @classmethod
    def of(cls, path: str | PathLike[str]) -> File | None:
        """Returns None for files that the import itself reads."""
        found = re.fullmatch(r"(.+\.(?:parquet|pt|pth))(?::([^/]+))?", fspath(path), re.DOTALL)
        return cls(Path(found[1]), found[2]) if found else None

    @property
    def is_parquet(self) -> bool:
        return self.path.suffix == ".parquet"


def load_torch(file: File) -> Any:
    """Maps the tensor of a file that torch.save wrote; no other object is unpickled."""
    try:
        import torch
    except ImportError as error:
        raise StoreError(f"{file.path}: torch reads it, and is not installed") from error
    try:
        value = torch.load(fspath(file.path), map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        words = str(error).strip().partition("\n")[0]
        raise StoreError(
            f"{file.path}: expected tensors saved by torch.save, found other objects or a damaged "
            f"file; if you trust it, load it and pass what it holds ({words})"
        ) from error
    if file.member is not None:
        if not isinstance(value, dict) or file.member not in value:
            keys = ", ".join(map(str, value)) if isinstance(value, dict) else "a single tensor"
            raise StoreError(f"{file.path}: no tensor {file.member}, found {keys}")
        value = value[file.member]
    if not isinstance(value, torch.Tensor):
        raise StoreError(
            f"{file.path}: expected a tensor, found {type(value).__name__}; name one of a dict by "
            "FILE:KEY"
        )
    return value


class RowsFile:
    """An .npy file of rows that are written one piece after the other."""

    def __init__(self, path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
        self._file = path.open("wb")
        self._dtype = np.dtype(dtype)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(self._file, header)

    def write(self, rows: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)

    def __enter__(self) -> RowsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def parquet_edges(file: File, out: Path) -> None:
    """Copies two columns of integers: the only ones, or those of FILE:SOURCE,DESTINATION."""
    table = _Table(file.path)
    names = file.member.split(",") if file.member else table.names
    if len(names) != 2:
        found = ", ".join(names)
        raise ShapeError(
            f"{file.path}: expected two columns, found {found}; name them by "
            "FILE:SOURCE,DESTINATION"
        )
    for name in names:
        dtype, width = table.layout(name)
        if not np.issubdtype(dtype, np.integer) or width is not None:
            raise DtypeError(f"{file.path}: column {name}: expected integers, found {dtype}")
    with RowsFile(out, np.int64, (table.rows, 2)) as pairs:
        for source, destination in table.pieces(names, _PIECE_EDGES):
            pairs.write(np.stack([source, destination], axis=1).astype(np.int64))


def parquet_rows(file: File, out: Path) -> None:
    """Copies the rows of a column of numbers or lists, or of all columns of numbers."""
    table = _Table(file.path)
    names = [file.member] if file.member else table.names
    layouts = [table.layout(name) for name in names]
    dtype, width = layouts[0]
    if any(layout != (dtype, None) for layout in layouts) and len(names) > 1:
        described = ", ".join(f"{n} {d}" for n, (d, _) in zip(names, layouts, strict=True))
        raise DtypeError(
            f"{file.path}: expected columns of one type, found {described}; name one by FILE:COLUMN"
        )
    n_columns = len(names) if len(names) > 1 else width
    shape = (table.rows,) if n_columns is None else (table.rows, n_columns)
    at_a_time = max(1, _PIECE_BYTES // (dtype.itemsize * max(1, n_columns or 1)))
    with RowsFile(out, dtype, shape) as rows:
        for columns in table.pieces(names, at_a_time):
            piece = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
            if piece.shape[1:] != shape[1:]:
                raise ShapeError(f"{file.path}: lists of {piece.shape[1]} and {width} numbers")
            rows.write(piece)


class _Table:
    """A Parquet file, read in pieces."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            words = "Parquet files are read by pyarrow, which is not installed: pip install pyarrow"
            raise StoreError(f"{path}: {words}") from error
        self.path, self._arrow = path, pyarrow
        try:
            self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        except (OSError, pyarrow.ArrowException) as error:
            raise StoreError(f"{path}: {error}") from error
        self.names: list[str] = self._file.schema_arrow.names
        self.rows: int = self._file.metadata.num_rows

    def layout(self, name: str) -> tuple[np.dtype[Any], int | None]:
        """Returns the type of a column's numbers, and how many a list has; None without lists."""
        if name not in self.names:
            found = ", ".join(self.names)
            raise StoreError(f"{self.path}: no column {name}, found {found}")
        of_column = self._file.schema_arrow.field(name).type
        types = self._arrow.types
        width = None
        if types.is_fixed_size_list(of_column):
            width = of_column.list_size
        elif types.is_list(of_column) or types.is_large_list(of_column):
            # Every piece is compared with the first row.
            first = next(self.pieces([name], 1), None)
            width = first[0].shape[1] if first else 0
        element = of_column if width is None else of_column.value_type
        if not (types.is_integer(element) or types.is_floating(element)):
            raise DtypeError(f"{self.path}: column {name}: expected numbers, found {of_column}")
        return np.dtype(element.to_pandas_dtype()), width

    def pieces(self, names: list[str], n_rows: int) -> Iterator[list[np.ndarray]]:
        """Reads up to `n_rows` rows of the columns at a time."""
        first = 0
        try:
            for batch in self._file.iter_batches(n_rows, columns=names, use_threads=False):
                # Columns come in the order of the file.
                yield [self._array(name, batch.column(name), first) for name in names]
                first += batch.num_rows
        except (OSError, self._arrow.ArrowException) as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _array(self, name: str, column: Any, first: int) -> np.ndarray:
        where = f"{self.path}: column {name}"
        if column.null_count:
            row = first + column.is_null().to_pylist().index(True)
            raise ShapeError(f"{where}: row {row} is null; fill it before the import")
        if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
            return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
        values = column.flatten()
        if values.null_count:
            raise ShapeError(f"{where}: a list from row {first} on has a null")
        width = len(values) // max(1, len(column))
        if hasattr(column, "offsets"):
            lengths = np.diff(column.offsets.to_numpy())
            if lengths.size and (lengths != lengths[0]).any():
                row = first + int(np.flatnonzero(lengths != lengths[0])[0])
                raise ShapeError(
                    f"{where}: expected lists of {lengths[0]} numbers, found another in row {row}"
                )
        return values.to_numpy(zero_copy_only=False).reshape(len(column), width)  # type: ignore[no-any-return]
