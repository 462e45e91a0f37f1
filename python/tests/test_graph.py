"""Graphs: what they tell, versions, ids, edges, damage, errors, pickles."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import time

import numpy as np
import pytest
from conftest import N_NODES, Sample, in_process

import lodestore


def test_what_a_graph_tells(sample: Sample, graph: lodestore.Graph) -> None:
    assert graph.nodes == N_NODES and graph.edges == len(sample.edges) and graph.version == 1
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", graph.uuid)
    assert f'"{graph.uuid}"' in (sample.path / "graph.toml").read_text()
    assert list(graph.tensors) == list(sample.rows)
    assert "feat" in graph and "no" not in graph
    text = repr(graph)
    assert text.startswith("Graph('g', 3,001 nodes, version 1: ")
    assert "feat float32×33, label int64" in text and "external_id" not in text
    assert repr(graph["feat"]) == f"Tensor(feat float32×33 of {text})"
    assert "bf bfloat16×33" in text


def test_ids_and_splits(sample: Sample, graph: lodestore.Graph) -> None:
    everything = np.arange(N_NODES)
    external = graph.external(everything)
    assert external.dtype == np.int64 and np.array_equal(np.sort(external), everything)
    internal = graph.internal(external)
    assert internal.dtype == np.int64 and np.array_equal(internal, everything)
    for bad in [-1, N_NODES]:
        with pytest.raises(lodestore.IdError) as caught:
            graph.internal([0, bad])
        assert (caught.value.id, caught.value.position) == (bad, 1)
    for name, number in [("train", 0), ("val", 1), ("test", 2)]:
        assert np.array_equal(graph.split(name), np.flatnonzero(sample.splits == number))
    with pytest.raises(ValueError, match="train"):
        graph.split("training")


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_edges_by_destination(sample: Sample, graph: lodestore.Graph, dtype: str) -> None:
    colptr, row = graph.csc(dtype)  # type: ignore[arg-type]
    assert colptr.dtype == np.int64 and row.dtype == np.dtype(dtype)
    assert colptr[0] == 0 and colptr[-1] == len(row) == graph.edges
    destination = np.repeat(np.arange(N_NODES), np.diff(colptr))
    assert set(zip(row.tolist(), destination.tolist(), strict=True)) == sample.edges
    with pytest.raises(lodestore.DtypeError):
        graph.csc("int16")  # type: ignore[arg-type]


def test_puts_commits_and_versions(copied: Sample) -> None:
    rows = copied.rows["feat"]
    new = np.arange(66, dtype=np.float32).reshape(2, 33)
    with lodestore.open(copied.path, writable=True) as graph:
        assert "writable" in repr(graph)
        graph.put("feat", [7, 9], new)
        assert np.array_equal(graph["feat"][[7, 9]], rows[[7, 9]]), "not committed"
        assert graph.commit() == 2 and graph.version == 2
        assert np.array_equal(graph["feat"][[7, 9]], new)
        old = graph.at(1)
        graph["feat"].put(np.array([7, 7], np.int32), new)
        graph["label"].put([7], [[123]])
        assert graph.commit() == 3
        assert np.array_equal(graph["feat"][7], new[1]), "the last row of an id stays"
        assert graph["label"][7] == 123
        assert old.version == 1 and np.array_equal(old["feat"][:], rows)
        with pytest.raises(lodestore.ReadOnlyError):
            old.put("feat", [7], new[:1])
        for version in [0, 4]:
            with pytest.raises(lodestore.VersionError) as caught:
                graph.at(version)
            assert isinstance(caught.value, ValueError)
        with pytest.raises(lodestore.LockedError) as locked:
            lodestore.open(copied.path, writable=True)
        assert isinstance(locked.value, PermissionError) and "another process" in str(locked.value)
    with lodestore.open(copied.path, version=2) as graph:
        assert graph.version == 2 and np.array_equal(graph["feat"][[7, 9]], new)
    with lodestore.open(copied.path) as graph:
        assert graph.version == 3 and np.array_equal(graph["feat"][7], new[1])


def test_nan_is_refused_unless_it_is_kept(copied: Sample) -> None:
    rows = np.full((2, 33), 1, np.float32)
    rows[1, 5] = np.nan
    with lodestore.open(copied.path, writable=True) as graph:
        for put in [
            lambda: graph.put("feat", [3, 4], rows),
            lambda: graph["feat"].put([3, 4], rows),
        ]:
            with pytest.raises(
                lodestore.StoreError, match="feat: row 1, column 5 of the rows is NaN"
            ):
                put()
        graph.commit()
        np.testing.assert_array_equal(graph["feat"][[3, 4]], copied.rows["feat"][[3, 4]])
        with (
            pytest.raises(lodestore.StoreError, match="h: row 7, column 0"),
            graph.new_tensor("h", "float32") as writer,
        ):
            writer.write(0, np.where(np.arange(N_NODES) == 7, np.nan, 0).astype(np.float32))
        graph["feat"].put([3, 4], rows, nan="keep")
        graph.commit()
        assert np.isnan(graph["feat"][[4]][0, 5])
        with pytest.raises(ValueError, match="refuse"):
            graph.put("feat", [3, 4], rows, nan="drop")


def test_bad_puts(copied: Sample, graph: lodestore.Graph) -> None:
    good = np.zeros((2, 33), np.float32)
    with pytest.raises(PermissionError, match="writable=True"):
        graph.put("feat", [1, 2], good)
    with pytest.raises(lodestore.ReadOnlyError):
        graph.commit()
    with lodestore.open(copied.path, writable=True) as own:
        for wrong in [good[:1], good[:, :5], good.reshape(-1), good[None]]:
            with pytest.raises(lodestore.ShapeError):
                own.put("feat", [1, 2], wrong)
        with pytest.raises(lodestore.DtypeError, match="convert"):
            own.put("feat", [1, 2], good.astype(np.float64))
        with pytest.raises(lodestore.IdError):
            own.put("feat", [1, N_NODES], good)
        with pytest.raises(lodestore.ReadOnlyError):
            own.put("external_id", [1], [1])
        own.put("feat", [1, 2], np.asfortranarray(good + 1))
        own.commit()
        assert np.array_equal(own["feat"][[1, 2]], good + 1)
        own.put("bf", [1], np.full((1, 33), 0x3F80, np.uint16))
        own.commit()
        assert (own.gather("bf", [1], dtype="float32") == 1).all()


def test_new_tensors(copied: Sample) -> None:
    rng = np.random.default_rng(3)
    hidden = rng.standard_normal((N_NODES, 6)).astype(np.float16)
    with lodestore.open(copied.path, writable=True) as graph:
        with graph.new_tensor("h1", "float16", 6) as writer:
            for first in range(0, N_NODES, 700):
                assert str(first) in repr(writer)
                writer.write(first, hidden[first : first + 700])
            with pytest.raises(lodestore.ShapeError, match="in order"):
                writer.write(0, hidden[:1])
            with pytest.raises(lodestore.ShapeError, match="0 more"):
                writer.write(N_NODES, hidden[:1])
        assert np.array_equal(graph["h1"][:], hidden)
        with pytest.raises(lodestore.ClosedError):
            writer.write(0, hidden[:1])
        with pytest.raises(ZeroDivisionError), graph.new_tensor("h2", "float16", 6) as writer:
            writer.write(0, hidden)
            raise ZeroDivisionError
        assert "h2" not in graph
        writer = graph.new_tensor("h2", np.float32)
        with pytest.raises(lodestore.StoreError, match="rows are missing"), writer:
            writer.write(0, np.zeros(5, np.float32))
        assert "h2" not in graph
        with pytest.raises(lodestore.StoreError):
            graph.new_tensor("feat", "float32", 3)
        with pytest.raises(lodestore.DtypeError):
            graph.new_tensor("h2", "complex64", 3)
        graph.put("h1", [5], np.ones((1, 6), np.float16))
        graph.commit()
        assert (graph["h1"][5] == 1).all()
    with lodestore.open(copied.path) as graph:
        assert list(graph.tensors)[-1] == "h1"
        with pytest.raises(lodestore.ReadOnlyError):
            graph.new_tensor("h3", "float32")


def test_a_damaged_page_names_its_place(copied: Sample) -> None:
    file = next((copied.path / "part-001").glob("feat.*.seg"))
    with file.open("r+b") as segment:
        segment.seek(4096 + 5 * 4096 + 17)
        byte = segment.read(1)
        segment.seek(-1, os.SEEK_CUR)
        segment.write(bytes([byte[0] ^ 4]))
    with lodestore.open(copied.path) as graph:
        with pytest.raises(lodestore.DamagedError) as caught:
            graph["feat"][:]
        assert caught.value.file == str(file) and isinstance(caught.value.page, int)
        assert "checksum" in str(caught.value)
        assert np.array_equal(graph["label"][:], copied.rows["label"]), "others are read"
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is lodestore.DamagedError
        assert (again.file, again.page, str(again)) == (
            caught.value.file,
            caught.value.page,
            str(caught.value),
        )


def test_no_graph_and_bad_options(tmp_path: object, sample: Sample) -> None:
    with pytest.raises(OSError, match=r"graph\.toml") as caught:
        lodestore.open(str(tmp_path))
    assert isinstance(caught.value, lodestore.StoreError)
    with pytest.raises(ValueError, match="reader"):
        lodestore.open(sample.path, reader="fast")  # type: ignore[arg-type]
    with pytest.raises(lodestore.VersionError):
        lodestore.open(sample.path, version=9)
    with pytest.raises(lodestore.ReadOnlyError):
        lodestore.open(sample.path, version=1, writable=True)
    with pytest.raises(lodestore.StoreError):
        lodestore.open(sample.path, parts=[7])
    with lodestore.open(sample.path, parts=[0]) as graph, pytest.raises(lodestore.StoreError):
        graph["feat"][:]


@pytest.mark.parametrize("reader", ["mapped", "direct", "pread"])
def test_readers_and_pickles(sample: Sample, reader: str) -> None:
    ids = np.arange(0, N_NODES, 3)
    with lodestore.open(sample.path, reader=reader) as graph:  # type: ignore[arg-type]
        copy = pickle.loads(pickle.dumps(graph))
        tensor = pickle.loads(pickle.dumps(graph["feat"]))
        for of in [graph["feat"], copy["feat"], tensor]:
            assert np.array_equal(of[ids], sample.rows["feat"][ids])
        assert copy is not graph and copy.uuid == graph.uuid


def test_a_closed_graph(sample: Sample) -> None:
    graph = lodestore.open(sample.path)
    tensor = graph["feat"]
    graph.close()
    graph.close()
    assert "closed" in repr(graph)
    for use in [lambda: tensor[0], lambda: graph.nodes, lambda: graph["feat"]]:
        with pytest.raises(lodestore.ClosedError, match="open it again"):
            use()


def test_every_error_is_one_of_ours_and_of_python() -> None:
    bases = {
        "IdError": IndexError,
        "UnknownTensorError": KeyError,
        "ShapeError": ValueError,
        "DtypeError": TypeError,
        "StoreError": OSError,
        "VersionError": ValueError,
        "ReadOnlyError": PermissionError,
        "LockedError": PermissionError,
        "ClosedError": ValueError,
        "ScheduleError": ValueError,
        "ServerError": ConnectionError,
        "OverloadedError": ConnectionError,
        "DeadlineError": TimeoutError,
        "VolatileError": ValueError,
    }
    for name, base in bases.items():
        error = getattr(lodestore, name)("some `words`")
        assert isinstance(error, base) and isinstance(error, lodestore.Error)
        assert str(error) == "some `words`"
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
    busy = pickle.loads(pickle.dumps(lodestore.OverloadedError("full", 0.25)))
    assert busy.retry_after == 0.25 and isinstance(busy, lodestore.ServerError)


def test_import_is_light(sample: Sample) -> None:
    heavy = "('torch', 'ml_dtypes', 'asyncio')"
    code = f"""
import sys, lodestore
lodestore.open(sys.argv[1]).gather("feat", [1], dtype="float32")
print([m for m in {heavy} if m in sys.modules])
"""
    assert in_process(code, sample.path).stdout.strip() == "[]"


CTRL_C = """
import signal, sys, time, numpy as np, lodestore
# A shell's job in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
graph = lodestore.open(sys.argv[1])
ids = np.tile(np.arange(graph.nodes), 40_000)
print("ready", flush=True)
start = time.monotonic()
try:
    out = np.empty((1, 33), np.float32)
    graph.gather("feat", ids)
except KeyboardInterrupt:
    print("interrupted", flush=True)
else:
    print("done", time.monotonic() - start, flush=True)
print(graph["label"][0])
"""


def test_ctrl_c_ends_a_long_gather(sample: Sample) -> None:
    import subprocess
    import sys

    code = CTRL_C.replace("40_000", "4_000")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(sample.path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    line = process.stdout.readline()
    took = time.monotonic() - start
    assert line == "interrupted\n"
    assert took < 10, took
    assert process.stdout.readline().strip() == str(sample.rows["label"][0])
    assert process.wait(20) == 0


def test_threads_scale_without_the_lock(graph: lodestore.Graph) -> None:
    """While one thread gathers, another runs Python."""
    ids = np.tile(np.arange(N_NODES), 400)
    is_over = threading.Event()

    def gather() -> None:
        graph.gather("feat", ids)
        is_over.set()

    thread = threading.Thread(target=gather)
    turns = 0
    thread.start()
    while not is_over.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 3
