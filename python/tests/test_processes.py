"""Forked, spawned and forkserver children, while the parent gathers in a thread."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import LODE, N_NODES, Sample, Server

import lodestore

Serve = Callable[..., tuple[Server, str]]
METHODS = ["fork", "spawn", "forkserver"]
DEADLINE = 60


def gathered(graph: lodestore.Graph, ids: np.ndarray, results: Any) -> None:
    """Sends rows gathered in both ways, or the error, from the child."""
    try:
        rows = graph["feat"][ids]
        later = graph.submit("feat", ids).result(20)
        results.send(("rows", rows.tobytes(), later.tobytes()))
    except Exception as error:
        results.send((type(error).__name__, str(error), ""))


def in_child(method: str, graph: lodestore.Graph, ids: np.ndarray) -> tuple[str, Any, Any]:
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=gathered, args=(graph, ids, sender))
    child.start()
    sender.close()
    try:
        # Before the join: a pipe has no room for all rows.
        assert receiver.poll(DEADLINE), "the child hangs"
        result = receiver.recv()
        child.join(DEADLINE)
        assert child.exitcode == 0
        return result  # type: ignore[no-any-return]
    finally:
        if child.is_alive():
            child.kill()


class Busy:
    """Gathers in a thread, and compares."""

    def __init__(self, graph: lodestore.Graph, rows: np.ndarray) -> None:
        self.graph, self.rows = graph, rows
        self.is_over, self.wrong, self.turns = threading.Event(), 0, 0
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        rng = np.random.default_rng(9)
        while not self.is_over.is_set():
            ids = rng.integers(0, N_NODES, 300)
            self.wrong += not np.array_equal(self.graph["feat"][ids], self.rows[ids])
            self.turns += 1

    def __enter__(self) -> Busy:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()
        assert self.wrong == 0 and self.turns > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reader", ["mapped", "direct", "pread"])
def test_children_read_files(sample: Sample, method: str, reader: Any) -> None:
    ids = np.random.default_rng(4).integers(0, N_NODES, 400)
    rows = sample.rows["feat"]
    with lodestore.open(sample.path, reader=reader) as graph:
        graph.submit("feat", ids).result()
        with Busy(graph, rows):
            for _ in range(3 if method == "fork" else 1):
                kind, first, second = in_child(method, graph, ids)
                assert kind == "rows", first
                assert first == second == rows[ids].tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_children_ask_servers(sample: Sample, serve: Serve, method: str) -> None:
    ids = np.random.default_rng(4).integers(0, N_NODES, 400)
    rows = sample.rows["feat"]
    _, address = serve(sample.path)
    with lodestore.connect(address) as graph:
        graph.submit("feat", ids).result()
        with Busy(graph, rows):
            for _ in range(3 if method == "fork" else 1):
                kind, first, second = in_child(method, graph, ids)
                assert kind == "rows", first
                assert first == second == rows[ids].tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_children_ask_servers_by_tls(
    sample: Sample, serve: Serve, certificates: Path, method: str
) -> None:
    ids = np.random.default_rng(4).integers(0, N_NODES, 400)
    rows = sample.rows["feat"]
    token = certificates / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    files = [f"--tls-cert={certificates}/server.pem", f"--tls-key={certificates}/server.key"]
    client = {"tls_ca": certificates / "ca.pem", "token_file": token}
    _, address = serve(sample.path, *files, f"--token-file={token}", tcp=client)
    with pytest.raises(lodestore.ServerError):
        lodestore.connect(address, token_file=token, deadline=2.0)
    with lodestore.connect(address, **client) as graph:
        graph.submit("feat", ids).result()
        with Busy(graph, rows):
            for _ in range(3 if method == "fork" else 1):
                kind, first, second = in_child(method, graph, ids)
                assert kind == "rows", first
                assert first == second == rows[ids].tobytes()
        # The parent's stream is still its own.
        assert np.array_equal(graph["feat"][ids], rows[ids])


@pytest.mark.parametrize("method", METHODS)
def test_a_child_reads_the_version_of_its_parent(copied: Sample, method: str) -> None:
    ids = np.array([7, 8])
    new = np.ones((2, 33), np.float32)
    with lodestore.open(copied.path) as graph:
        graph["feat"][ids]
        # The writer is another process, so that this one has none open.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(put_and_commit, (copied.path, ids, new))
        kind, first, _ = in_child(method, graph, ids)
        assert kind == "rows", first
        assert first == copied.rows["feat"][ids].tobytes() == graph["feat"][ids].tobytes()
        copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(graph))))
        assert copy.version_id == graph.version_id
        assert np.array_equal(copy["feat"][ids], graph["feat"][ids])
        sampler = pickle.loads(pickle.dumps(graph.sampler([2])))
        assert len(sampler.sample([7], 3)[0]) > 0
    with lodestore.open(copied.path) as graph:
        assert np.array_equal(graph["feat"][ids], new)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pin", [True, False])
def test_a_child_keeps_the_pin_of_its_parent(
    copied: Sample, serve: Serve, method: str, pin: bool
) -> None:
    ids = np.array([7, 8])
    old, new = copied.rows["feat"][ids], np.ones((2, 33), np.float32)
    _, address = serve(copied.path, "--writable")
    with lodestore.connect(address, pin=pin) as graph, lodestore.connect(address) as writer:
        assert np.array_equal(graph["feat"][ids], old)
        writer.put("feat", ids, new)
        writer.commit()
        kind, first, _ = in_child(method, graph, ids)
        assert kind == "rows", first
        assert first == (old if pin else new).tobytes() == graph["feat"][ids].tobytes()
        copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(graph))))
        assert copy.version == (1 if pin else 2)
        assert np.array_equal(copy["feat"][ids], old if pin else new)


def test_a_pickle_of_a_version_that_is_gone_is_refused_by_name(copied: Sample) -> None:
    with lodestore.open(copied.path) as graph:
        pickled = pickle.dumps(graph)
    with lodestore.open(copied.path, writable=True) as graph:
        graph.put("feat", np.arange(N_NODES), np.ones((N_NODES, 33), np.float32))
        graph.commit()
    subprocess.run([LODE, "compact", copied.path], check=True, capture_output=True, timeout=60)
    with pytest.raises(lodestore.VersionError, match="version 1"):
        pickle.loads(pickled)["feat"]


def test_a_pickle_is_of_one_commit(copied: Sample, tmp_path: Path) -> None:
    ids = np.arange(20)
    other = tmp_path / "other"
    shutil.copytree(copied.path, other)
    for path, value in [(copied.path, 1), (other, 2)]:
        put_and_commit(path, ids, np.full((20, 33), value, np.float32))
    with lodestore.open(copied.path) as graph:
        pickled, version = pickle.dumps(graph), graph.version_id
        assert version.startswith("2:") and (graph["feat"][ids] == 1).all()
    assert (pickle.loads(pickled)["feat"][ids] == 1).all()
    # A version of the same number that another writer has made.
    shutil.rmtree(copied.path)
    other.rename(copied.path)
    with lodestore.open(copied.path) as graph:
        assert graph.version == 2 and graph.version_id != version
        with pytest.raises(lodestore.VersionError, match="another commit") as caught:
            graph.at(version)
        assert version in str(caught.value) and graph.version_id in str(caught.value)
    with pytest.raises(lodestore.VersionError, match="another commit"):
        pickle.loads(pickled)["feat"]


def put_and_commit(path: Path, ids: np.ndarray, rows: np.ndarray) -> None:
    with lodestore.open(path, writable=True) as graph:
        graph.put("feat", ids, rows)
        graph.commit()


def test_a_forked_writer_raises_and_says_what_to_do(copied: Sample, sample: Sample) -> None:
    ids = np.array([1, 2])
    unopened = lodestore.open(sample.path)
    unopened.close()
    with lodestore.open(sample.path) as read, lodestore.open(copied.path, writable=True) as graph:
        kind, words, _ = in_child("fork", graph, ids)
        assert kind == "LockedError"
        assert "spawn" in words and "before the fork" in words and "RocksDB" in words
        # A view of the writer's files is the writer's.
        kind, words, _ = in_child("fork", graph.at(1), ids)
        assert kind == "LockedError", words
        # A graph that was open for reading before the fork serves the child.
        kind, first, _ = in_child("fork", read, ids)
        assert kind == "rows", first
        assert first == sample.rows["feat"][ids].tobytes()
        # A graph that the parent had not opened cannot be opened there.
        kind, words, _ = in_child("fork", lazily(sample.path), ids)
        assert kind == "LockedError" and "before the fork" in words, (kind, words)
        graph.put("feat", [1], np.zeros((1, 33), np.float32))
        assert graph.commit() == 2, "the parent writes on"


def lazily(path: Path) -> lodestore.Graph:
    with lodestore.open(path) as graph:
        return pickle.loads(pickle.dumps(graph))  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_that_is_replaced_while_open(copied: Sample, method: str) -> None:
    ids = np.arange(20)
    rows = copied.rows["feat"][ids]
    with lodestore.open(copied.path) as graph:
        assert np.array_equal(graph["feat"][ids], rows)
        shutil.rmtree(copied.path)
        zeros = np.zeros((N_NODES, 33), np.float32)
        edges = np.array([[0, 1], [1, 2], [2, 0]])
        lodestore.import_graph(copied.path, edges=edges, tensors={"feat": zeros}).close()
        # This process has the files of the graph that it opened, whatever their names are now.
        assert np.array_equal(graph["feat"][ids], rows)
        assert np.array_equal(graph.submit("feat", ids).result(), rows)
        kind, words, _ = in_child(method, graph, ids)
        assert kind == "StoreError", "the rows of another graph are not returned"
        assert str(copied.path) in words and "open it again" in words
        copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(graph))))
        with pytest.raises(lodestore.StoreError, match="another graph"):
            copy["feat"]
    with lodestore.open(copied.path) as graph:
        assert not graph["feat"][:].any()
        kind, first, _ = in_child(method, graph, ids)
        assert (kind, first) == ("rows", zeros[ids].tobytes())


def test_a_future_of_the_parent_raises_in_a_child(sample: Sample) -> None:
    with lodestore.open(sample.path) as graph:
        future = graph.submit("feat", np.arange(100))
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        child = context.Process(target=result_of, args=(future, results))
        child.start()
        child.join(DEADLINE)
        assert child.exitcode == 0 and results.get() == "LockedError"
        assert np.array_equal(future.result(), sample.rows["feat"][:100])


def result_of(future: Any, results: Any) -> None:
    try:
        future.result()
        results.put("rows")
    except lodestore.Error as error:
        results.put(type(error).__name__)
