"""Imports of arrays, files and datasets."""

from __future__ import annotations

import gzip
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import N_INPUT_NODES as N_NODES

import lodestore
import lodestore.ogb


def rows_of(graph: lodestore.Graph, tensor: str) -> np.ndarray:
    """Rows by the ids of the input."""
    rows = graph.gather(tensor, np.arange(graph.nodes))
    by_input = np.empty_like(rows)
    by_input[graph.external(np.arange(graph.nodes))] = rows
    return by_input


def is_left_behind(folder: Path) -> bool:
    return any(
        entry.name.startswith((".lode-", "g.")) or entry.name == "g" for entry in folder.iterdir()
    )


@pytest.mark.parametrize("form", ["2xE", "Ex2", "pair", "path", "int32"])
def test_edges_in_every_form_give_the_same_graph(arrays, tmp_path, form):
    edges = arrays["edges"]
    forms = {
        "2xE": edges,
        "Ex2": edges.T,
        "pair": (edges[0], edges[1]),
        "path": tmp_path / "edges.npy",
        "int32": edges.astype(np.int32),
    }
    np.save(tmp_path / "edges.npy", np.ascontiguousarray(edges.T))
    tensors = {"feat": arrays["feat"], "label": arrays["label"]}
    with lodestore.import_graph(
        tmp_path / "g", edges=forms[form], tensors=tensors, parts=3
    ) as graph:
        assert graph.nodes == N_NODES
        assert graph.edges == len(np.unique(edges, axis=1).T)
        np.testing.assert_array_equal(rows_of(graph, "feat"), arrays["feat"])
        np.testing.assert_array_equal(rows_of(graph, "label"), arrays["label"])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["edges.npy", "g"]


def test_errors_name_the_argument_and_not_a_file_of_the_import(arrays, tmp_path):
    edges, feat = arrays["edges"], arrays["feat"]
    np.save(tmp_path / "short.npy", feat[:-1])
    short, nan = feat[:-1], np.full((N_NODES, 1), np.nan)
    weights = np.ones(edges.shape[1] - 1, np.float32)
    cases = [
        ({"tensors": {"feat": feat, "x": short}}, [r"tensors['x']", str(N_NODES - 1)]),
        ({"tensors": {"feat": feat, "x": tmp_path / "short.npy"}}, [str(tmp_path / "short.npy")]),
        ({"tensors": {"feat": feat, "x": nan}}, [r"tensors['x']", "NaN"]),
        ({"tensors": {"x": feat}, "edges": -edges}, ["edges"]),
        ({"tensors": {"x": feat}, "edge_weights": weights}, ["edge_weights"]),
        ({"tensors": {"x": feat[:5]}, "splits": {"train": [1]}, "nodes": N_NODES}, [r"['x']"]),
    ]
    for arguments, words in cases:
        with pytest.raises(lodestore.Error) as caught:
            lodestore.import_graph(tmp_path / "g", **{"edges": edges, **arguments})
        text = str(caught.value)
        assert all(word in text for word in words), text
        assert ".lode-" not in text and "0.npy" not in text, text


def test_splits_types_and_memory_maps(arrays, tmp_path):
    np.save(tmp_path / "feat.npy", arrays["feat"])
    mapped = np.load(tmp_path / "feat.npy", mmap_mode="r")
    splits = {"train": np.arange(10), "val": [20, 21], "test": np.arange(30, 40, dtype=np.uint32)}
    graph = lodestore.import_graph(
        tmp_path / "g",
        edges=arrays["edges"],
        tensors={"feat": mapped, "transposed": arrays["feat"].T.copy().T},
        splits=splits,
        dtypes={"feat": "f16"},
        undirected=True,
        codec="raw",
    )
    assert graph["feat"].dtype == np.float16
    np.testing.assert_array_equal(rows_of(graph, "feat"), arrays["feat"].astype(np.float16))
    np.testing.assert_array_equal(rows_of(graph, "transposed"), arrays["feat"])
    for name, ids in splits.items():
        found = np.sort(graph.external(graph.split(name)))
        np.testing.assert_array_equal(found, np.sort(ids))


def test_the_order_of_bytes_makes_no_difference(arrays, tmp_path):
    tensors = {"feat": arrays["feat"].astype(">f4")}
    edges = arrays["edges"].astype(">i8")
    with lodestore.import_graph(tmp_path / "g", edges=edges, tensors=tensors) as graph:
        np.testing.assert_array_equal(rows_of(graph, "feat"), arrays["feat"])


def test_splits_are_masks_too(arrays, tmp_path):
    edges, feat = arrays["edges"], arrays["feat"]
    mask = np.zeros(N_NODES, bool)
    mask[[3, 7]] = True
    arguments = {"edges": edges, "tensors": {"feat": feat}}
    with lodestore.import_graph(tmp_path / "g", splits={"train": mask}, **arguments) as graph:
        assert sorted(graph.external(graph.split("train"))) == [3, 7]
    wrongs = [
        (mask[:-1], "a mask has one value"),
        (feat[:, 0], "node ids or a mask"),
        (mask.astype(np.uint8), "names nodes several times; a mask has the type bool"),
    ]
    for wrong, words in wrongs:
        with pytest.raises(lodestore.Error, match=words):
            lodestore.import_graph(tmp_path / "h", splits={"train": wrong}, **arguments)


def test_rows_in_csr_form_are_taken(arrays, tmp_path):
    feat = np.where(arrays["feat"] > 0.5, arrays["feat"], 0).astype(np.float32)
    rows, columns = np.nonzero(feat)
    indptr = np.searchsorted(rows, np.arange(N_NODES + 1))

    class Sparse:
        """What the import needs of scipy's matrices."""

        format, shape = "csr", feat.shape
        data, indices = feat[rows, columns], columns

        def tocsr(self):
            return self

    Sparse.indptr = indptr
    arguments = {"edges": arrays["edges"], "splits": {"train": [1]}}
    with lodestore.import_graph(tmp_path / "g", tensors={"feat": Sparse()}, **arguments) as graph:
        np.testing.assert_array_equal(rows_of(graph, "feat"), feat)
    Sparse.format = "csc"
    with pytest.raises(lodestore.DtypeError, match=r"found csc; use tocsr\(\)"):
        lodestore.import_graph(tmp_path / "h", tensors={"feat": Sparse()}, **arguments)


def test_what_exists_is_refused_before_any_work(arrays, tmp_path, monkeypatch):
    monkeypatch.setattr("lodestore._importing._edge_files", lambda *_: pytest.fail("it worked"))
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    for name in ["file", "link", "folder"]:
        with pytest.raises(lodestore.StoreError, match="exists already"):
            lodestore.import_graph(tmp_path / name, edges=arrays["edges"])


def ogb_dataset(folder: Path) -> Path:
    """Writes a dataset as OGB's archives hold it."""
    files = {
        "raw/edge.csv.gz": "0,1\n1,2\n",
        "raw/node-feat.csv.gz": "1,2\n3,4\n5,6\n",
        "raw/node-label.csv.gz": "1\nnan\n0\n",
        "raw/num-node-list.csv.gz": "3\n",
        "raw/edge-feat.csv.gz": "1\n2\n",
        "split/time/train.csv.gz": "0\n",
        "split/time/valid.csv.gz": "1\n",
        "split/time/test.csv.gz": "2\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.write(text)
    return folder


def test_a_dataset_of_ogb(tmp_path):
    folder = ogb_dataset(tmp_path / "ogbn_products")
    with pytest.warns(UserWarning, match="features of edges"):
        graph = lodestore.import_graph(tmp_path / "g", dataset=("ogb", folder))
    assert graph.edges == 4  # both directions
    np.testing.assert_array_equal(rows_of(graph, "label"), [1, -1, 0])
    np.testing.assert_array_equal(rows_of(graph, "feat"), [[1, 2], [3, 4], [5, 6]])
    assert graph.external(graph.split("val")).tolist() == [1]


@pytest.mark.filterwarnings("ignore:features of edges")
@pytest.mark.parametrize("name", ["ogbn_products", "ogbn_products_pyg"])
def test_a_dataset_of_ogb_by_name(tmp_path, name):
    folder = ogb_dataset(tmp_path / name)
    graph = lodestore.ogb.open("ogbn-products", tmp_path, parts=2, progress=lambda *_: None)
    assert (graph.nodes, graph.edges, len(graph.parts)) == (3, 4, 2)
    for settings in [{}, {"parts": 2}]:
        again = lodestore.ogb.open("ogbn-products", tmp_path, **settings)
        assert again.uuid == graph.uuid, "it is imported once"
    with pytest.raises(ValueError, match=r"parts=2.*parts=1"):
        lodestore.ogb.open("ogbn-products", tmp_path, parts=1)
    assert (folder / "lodestore" / "graph.toml").is_file()
    with pytest.raises(lodestore.StoreError, match="NodePropPredDataset"):
        lodestore.ogb.open("ogbn-arxiv", tmp_path)


def test_progress_is_called_and_its_exception_ends_the_import(arrays, tmp_path):
    seen: list[tuple[str, int, int]] = []
    tensors = {"feat": arrays["feat"]}
    lodestore.import_graph(
        tmp_path / "a", edges=arrays["edges"], tensors=tensors, progress=lambda *at: seen.append(at)
    ).close()
    assert ("feat", N_NODES, N_NODES) in seen
    assert [stage for stage, done, _ in seen if done == 0][:3] == [
        "edges",
        "partition",
        "row order",
    ]

    def fails(stage: str, done: int, total: int) -> None:
        if stage == "feat":
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        lodestore.import_graph(
            tmp_path / "g", edges=arrays["edges"], tensors=tensors, progress=fails
        )
    assert not is_left_behind(tmp_path)


def test_an_interrupt_ends_the_import_and_leaves_nothing(arrays, tmp_path):
    def slow(stage: str, done: int, total: int) -> None:
        if stage == "topology":
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(0.6)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        lodestore.import_graph(
            tmp_path / "g", edges=arrays["edges"], tensors={"feat": arrays["feat"]}, progress=slow
        )
    assert time.monotonic() - start < 5
    # The import itself ends before its next stage.
    for _ in range(50):
        if not is_left_behind(tmp_path):
            break
        time.sleep(0.1)
    assert not is_left_behind(tmp_path)


def test_bad_input_is_refused_and_leaves_nothing(arrays, tmp_path):
    edges, feat = arrays["edges"], arrays["feat"]
    cases = [
        (
            {"edges": edges, "tensors": {"label": arrays["label"], "feat": feat[:-1]}},
            lodestore.ShapeError,
            "rows",
        ),
        ({"edges": edges.astype(np.float32)}, lodestore.DtypeError, "integers"),
        ({"edges": edges[:, :2]}, lodestore.ShapeError, "either way"),
        ({"edges": edges.reshape(3, -1)}, lodestore.ShapeError, r"\(2, E\)"),
        ({"edges": (edges[0], edges[1][:-1])}, lodestore.ShapeError, "shape"),
        (
            {"edges": edges, "tensors": {"feat": feat.reshape(N_NODES, 3, 3)}},
            lodestore.ShapeError,
            "width",
        ),
        ({"edges": edges, "tensors": {"feat": [object()]}}, lodestore.DtypeError, "numbers"),
        (
            {"edges": edges, "tensors": {"feat": np.full((N_NODES, 1), np.nan)}},
            lodestore.StoreError,
            "NaN",
        ),
        ({"edges": -edges, "tensors": {"feat": feat}}, lodestore.StoreError, "-"),
        (
            {"edges": edges, "tensors": {"feat": feat}, "splits": {"train": [N_NODES]}},
            lodestore.ShapeError,
            "from 0",
        ),
        (
            {"edges": edges, "tensors": {"feat": feat}, "splits": {"train": [1], "val": [1]}},
            lodestore.ShapeError,
            "another",
        ),
        ({"edges": edges, "tensors": {"feat": feat}, "splits": {"dev": [1]}}, ValueError, "dev"),
        (
            {"edges": edges, "tensors": {"feat": feat}, "dtypes": {"none": "f16"}},
            ValueError,
            "no tensor",
        ),
        ({"edges": edges, "tensors": {"feat": feat}, "dtypes": {"feat": "f17"}}, ValueError, "f17"),
        ({"edges": edges, "partitioner": "best"}, ValueError, "best"),
        ({"edges": edges, "parts": 0}, lodestore.StoreError, "1 partition"),
        ({"edges": tmp_path / "none.npy"}, lodestore.StoreError, "none.npy"),
        ({"dataset": ("ogb", tmp_path / "none")}, lodestore.StoreError, "no folder raw"),
        ({"dataset": ("pyg", tmp_path)}, ValueError, "ogb and graphbolt"),
        ({}, ValueError, "either"),
        ({"edges": edges, "nan": "drop"}, ValueError, "refuse"),
        ({"edges": edges, "tensors": {"x": feat}, "splits": feat}, ValueError, "expected a dict"),
        (
            {"edges": edges, "tensors": {"x": np.ma.masked_less(feat, 0)}},
            lodestore.DtypeError,
            "without a mask",
        ),
    ]
    for arguments, kind, words in cases:
        with pytest.raises(kind, match=words):
            lodestore.import_graph(tmp_path / "g", **arguments)
        assert not is_left_behind(tmp_path), arguments
    (tmp_path / "g").mkdir()
    with pytest.raises(lodestore.StoreError, match="exists"):
        lodestore.import_graph(tmp_path / "g", edges=edges)
