"""Imports of Parquet files, files of torch, and graphs of PyG and DGL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import N_INPUT_NODES as N_NODES
from conftest import in_process

import lodestore


def rows_of(graph: lodestore.Graph, tensor: str) -> np.ndarray:
    """Rows by the ids of the input."""
    return graph.gather(tensor, graph.internal(np.arange(graph.nodes)))


def edges_of(graph: lodestore.Graph) -> set[tuple[int, int]]:
    colptr, row = graph.csc()
    destination = np.repeat(np.arange(graph.nodes), np.diff(colptr))
    ends = [graph.external(ids).tolist() for ids in (row, destination)]
    return set(zip(*ends, strict=True))


def pairs(edges: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(*edges.tolist(), strict=True))


def write_parquet(folder: Path, arrays: dict[str, np.ndarray], kind: str) -> Path:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    feat, width = arrays["feat"], arrays["feat"].shape[1]
    flat = pa.array(feat.reshape(-1))
    offsets = pa.array(np.arange(0, feat.size + 1, width))
    columns = {
        "fixed": [pa.FixedSizeListArray.from_arrays(flat, width)],
        "list": [pa.ListArray.from_arrays(offsets.cast(pa.int32()), flat)],
        "large": [pa.LargeListArray.from_arrays(offsets, flat)],
        "columns": [pa.array(column) for column in feat.T],
    }[kind]
    names = [f"c{i}" for i in range(len(columns))]
    parquet.write_table(pa.table(columns, names), folder / "feat.parquet", row_group_size=70)
    label = pa.table([pa.array(arrays["label"]), pa.array(arrays["label"] / 2)], ["label", "half"])
    parquet.write_table(label, folder / "label.parquet", row_group_size=33)
    source, destination = (pa.array(ends.astype(np.uint32)) for ends in arrays["edges"])
    ends = pa.table([destination, source], ["to", "from"])
    parquet.write_table(ends, folder / "edges.parquet", row_group_size=1000)
    return folder


@pytest.mark.parametrize("kind", ["fixed", "list", "large", "columns"])
def test_parquet(arrays: dict[str, np.ndarray], tmp_path: Path, kind: str) -> None:
    write_parquet(tmp_path, arrays, kind)
    with lodestore.import_graph(
        tmp_path / "g",
        edges=f"{tmp_path}/edges.parquet:from,to",
        tensors={
            "feat": tmp_path / "feat.parquet",
            "label": f"{tmp_path}/label.parquet:label",
            "half": f"{tmp_path}/label.parquet:half",
        },
        parts=2,
    ) as graph:
        assert edges_of(graph) == pairs(arrays["edges"])
        np.testing.assert_array_equal(rows_of(graph, "feat"), arrays["feat"])
        np.testing.assert_array_equal(rows_of(graph, "label"), arrays["label"])
        np.testing.assert_array_equal(rows_of(graph, "half"), arrays["label"] / 2)
        assert graph["label"].dtype == np.int64 and graph["half"].dtype == np.float64
    # Without names the first column is the source; several files are one list.
    files = [tmp_path / "edges.parquet", tmp_path / "more.npy"]
    np.save(files[1], np.array([[0, 1]]))
    with lodestore.import_graph(tmp_path / "h", edges=files, nodes=N_NODES) as graph:
        assert edges_of(graph) == pairs(arrays["edges"][::-1]) | {(0, 1)}


def check_refused(
    path: Path, member: str, edges: np.ndarray, expected: tuple[type[Exception], str]
) -> None:
    """Checks that rows of `path`, alone in its folder, are refused and leave nothing behind."""
    kind, words = expected
    with pytest.raises(kind, match=words):
        lodestore.import_graph(
            path.parent / "g", edges=edges, tensors={"x": f"{path}{member}"}, nodes=N_NODES
        )
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], words


def test_parquet_that_does_not_fit(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    n = [1.5] * N_NODES
    ragged = [[1.0, 2.0]] * 300 + [[1.0]] * 100
    late = [[1.0, 2.0]] * 300 + [[1.0, 2.0, 3.0]] * 100
    cases: list[tuple[dict[str, Any], str, type[Exception], str]] = [
        ({"a": [*n[:-1], None]}, "", lodestore.ShapeError, "column a: row 399 is null"),
        ({"a": [[1.0, None]] * N_NODES}, "", lodestore.ShapeError, "has a null"),
        ({"a": ragged}, "", lodestore.ShapeError, "row 300"),
        ({"a": late}, "", lodestore.ShapeError, "2 numbers"),
        ({"a": ["x"] * N_NODES}, "", lodestore.DtypeError, "found string"),
        ({"a": n, "b": [1] * N_NODES}, "", lodestore.DtypeError, "a float64, b int64"),
        ({"a": n}, ":b", lodestore.StoreError, "no column b, found a"),
        ({"a": n[:-1]}, "", lodestore.ShapeError, "399"),
    ]
    for columns, member, kind, words in cases:
        parquet.write_table(pa.table(columns), path, row_group_size=150)
        check_refused(path, member, arrays["edges"], (kind, words))
    parquet.write_table(pa.table({"a": n, "b": n, "c": n}), path)
    with pytest.raises(lodestore.ShapeError, match="a, b, c; name them"):
        lodestore.import_graph(tmp_path / "g", edges=path)
    with pytest.raises(lodestore.DtypeError, match="integers"):
        lodestore.import_graph(tmp_path / "g", edges=f"{path}:a,b")
    path.write_bytes(b"PAR1 cut")
    with pytest.raises(lodestore.StoreError, match=r"t\.parquet"):
        lodestore.import_graph(tmp_path / "g", edges=path)
    with pytest.raises(lodestore.StoreError, match=r"none\.parquet"):
        lodestore.import_graph(tmp_path / "g", edges=tmp_path / "none.parquet")


def test_without_pyarrow_and_torch(
    arrays: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ["pyarrow", "pyarrow.parquet", "torch"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(lodestore.StoreError, match="pip install pyarrow"):
        lodestore.import_graph(tmp_path / "g", edges=tmp_path / "e.parquet")
    with pytest.raises(lodestore.StoreError, match="torch reads it"):
        lodestore.import_graph(tmp_path / "g", edges=tmp_path / "e.pt")
    assert not list(tmp_path.iterdir())


MEMORY = """
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as parquet
from pathlib import Path
from lodestore._inputs import File, parquet_rows

path, rows, width = Path(sys.argv[1]), 1_000_000, 64
schema = pa.schema([("feat", pa.list_(pa.float32(), width))])
with parquet.ParquetWriter(path, schema, use_dictionary=False, compression="zstd") as writer:
    for first in range(0, rows, 50_000):
        block = np.full((50_000, width), first, np.float32).reshape(-1)
        writer.write_table(pa.table([pa.FixedSizeListArray.from_arrays(block, width)], schema))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
parquet_rows(File(path, None), path.with_suffix(".npy"))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = np.load(path.with_suffix(".npy"), mmap_mode="r")
assert rows.shape == (1_000_000, 64) and rows[999_999, 63] == 950_000 and rows[49_999, 0] == 0
print(after - before)
"""


def test_memory_does_not_grow_with_a_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    done = in_process(MEMORY, tmp_path / "t.parquet", timeout=120)
    assert done.returncode == 0, done.stderr
    # The rows take 256 MB.
    assert int(done.stdout) < 100_000, done.stdout


def test_files_of_torch(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    feat = torch.from_numpy(arrays["feat"])
    torch.save(feat, tmp_path / "feat.pt")
    rounded = {"bf": feat.to(torch.bfloat16), "label": torch.from_numpy(arrays["label"])}
    torch.save(rounded, tmp_path / "more.pth")
    torch.save(torch.from_numpy(arrays["edges"]), tmp_path / "edges.pt")
    with lodestore.import_graph(
        tmp_path / "g",
        edges=tmp_path / "edges.pt",
        tensors={
            "feat": tmp_path / "feat.pt",
            "bf": f"{tmp_path}/more.pth:bf",
            "label": f"{tmp_path}/more.pth:label",
            "flags": feat[:, 0] > 0,
        },
    ) as graph:
        assert edges_of(graph) == pairs(arrays["edges"])
        np.testing.assert_array_equal(rows_of(graph, "feat"), arrays["feat"])
        np.testing.assert_array_equal(rows_of(graph, "label"), arrays["label"])
        np.testing.assert_array_equal(rows_of(graph, "flags"), arrays["feat"][:, 0] > 0)
        bits = rows_of(graph, "bf").view(np.int16)
        np.testing.assert_array_equal(bits, rounded["bf"].view(torch.int16).numpy())


class Harmful:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_files_of_torch_that_hold_other_things(
    arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "t.pt"
    short = torch.ones(N_NODES - 1)
    cases: list[tuple[Any, str, str]] = [
        (Harmful(tmp_path / "harm"), "", "if you trust it"),
        ({"a": torch.ones(N_NODES)}, ":b", "no tensor b, found a"),
        ({"a": torch.ones(N_NODES)}, "", "FILE:KEY"),
        (torch.ones(N_NODES), ":a", "a single tensor"),
        (short, "", "399"),
    ]
    for value, member, words in cases:
        torch.save(value, path)
        kind = lodestore.ShapeError if value is short else lodestore.StoreError
        check_refused(path, member, arrays["edges"], (kind, words))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(lodestore.StoreError, match="damaged"):
        lodestore.import_graph(tmp_path / "g", edges=path)


def masks(torch: Any) -> dict[str, Any]:
    """Returns three splits that do not overlap, and leave some nodes out."""
    of_node = torch.arange(N_NODES) % 5
    return {"train_mask": of_node == 0, "val_mask": of_node == 1, "test_mask": of_node == 2}


def check_graph(graph: lodestore.Graph, arrays: dict[str, np.ndarray]) -> None:
    assert graph.nodes == N_NODES and edges_of(graph) == pairs(arrays["edges"])
    np.testing.assert_array_equal(rows_of(graph, "feat"), arrays["feat"])
    np.testing.assert_array_equal(rows_of(graph, "label"), arrays["label"])
    for number, name in enumerate(["train", "val", "test"]):
        found = np.sort(graph.external(graph.split(name)))
        np.testing.assert_array_equal(found, np.arange(number, N_NODES, 5))
    assert not any("mask" in name for name in graph.tensors)


def test_a_graph_of_pyg(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    edge_index = torch.from_numpy(arrays["edges"])
    given = data.Data(
        x=torch.from_numpy(arrays["feat"]),
        y=torch.from_numpy(arrays["label"]),
        edge_index=edge_index,
        edge_attr=torch.ones(3000, 2),
        year=torch.arange(N_NODES),
        pos=torch.zeros(N_NODES, 2, 2),
        name="g",
        **masks(torch),
    )
    with (
        pytest.warns(UserWarning, match="edge_attr is left out"),
        pytest.warns(UserWarning, match=r"pos of shape \(400, 2, 2\) is left out"),
        pytest.warns(UserWarning, match="name is left out"),
        lodestore.import_graph(tmp_path / "g", data=given, parts=2) as graph,
    ):
        check_graph(graph, arrays)
        np.testing.assert_array_equal(rows_of(graph, "year"), np.arange(N_NODES))
    plain = data.Data(x=given.x, edge_index=edge_index, **masks(torch))
    half = given.x.half()
    with lodestore.import_graph(
        tmp_path / "h", data=plain, tensors={"feat": half}, splits={"train": [3]}
    ) as graph:
        np.testing.assert_array_equal(rows_of(graph, "feat"), half.numpy())
        assert graph.external(graph.split("train")).tolist() == [3], "what is given goes first"
    several = data.HeteroData()
    several["paper"].x = given.x
    several["author"].x = given.x
    for wrong, kind, words in [
        (several, lodestore.DtypeError, "found paper, author"),
        (data.Data(x=given.x), lodestore.ShapeError, "no edge_index"),
        (given.x, lodestore.DtypeError, "found Tensor"),
    ]:
        with pytest.raises(kind, match=words):
            lodestore.import_graph(tmp_path / "i", data=wrong)
    with pytest.raises(ValueError, match="either"):
        lodestore.import_graph(tmp_path / "i", data=plain, edges=edge_index)


def test_a_graph_of_dgl(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dgl = pytest.importorskip("dgl")
    ends = tuple(torch.from_numpy(of) for of in arrays["edges"])
    given = dgl.graph(ends, num_nodes=N_NODES)
    given.ndata["feat"] = torch.from_numpy(arrays["feat"])
    given.ndata["label"] = torch.from_numpy(arrays["label"])
    for name, mask in masks(torch).items():
        given.ndata[name] = mask
    given.edata["weight"] = torch.ones(3000)
    with (
        pytest.warns(UserWarning, match="weight of edges is left out"),
        lodestore.import_graph(tmp_path / "g", data=given) as graph,
    ):
        check_graph(graph, arrays)
    several = dgl.heterograph({("a", "to", "b"): ends})
    with pytest.raises(lodestore.DtypeError, match="found a, b"):
        lodestore.import_graph(tmp_path / "h", data=several)
