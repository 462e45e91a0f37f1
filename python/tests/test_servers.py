"""Graphs behind servers: the same rows, pins, puts, and servers that go away."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import N_NODES, Sample, Server

import lodestore

Serve = Callable[..., tuple[Server, str]]


def stop(server: Server) -> None:
    """Stops a server's process, and waits until all of its threads stand still."""
    server.process.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{server.process.pid}/task")
    while not all(
        (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        for thread in threads.iterdir()
    ):
        time.sleep(0.001)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stops a server's process, and continues it at the end."""
    stop(server)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_rows_of_servers(sample: Sample, serve: Serve) -> None:
    _, address = serve(sample.path)
    ids = np.random.default_rng(5).integers(0, N_NODES, 700)
    with lodestore.connect(address) as graph:
        assert graph.nodes == N_NODES and graph.version == 1 and graph.edges == len(sample.edges)
        assert repr(graph).startswith(f"Graph('{address}', 3,001 nodes: ")
        copy = pickle.loads(pickle.dumps(graph))
        for name, rows in sample.rows.items():
            found = graph.gather(name, ids, bulk=True)
            assert np.array_equal(found.view(rows.dtype), rows[ids])
            assert np.array_equal(copy[name][ids].view(rows.dtype), rows[ids])
        out = np.empty((700, 33), np.float32)
        assert graph.gather("feat", ids, out=out) is out
        assert np.array_equal(out, sample.rows["feat"][ids])
        half = graph.gather("half", ids, dtype="float32")
        assert np.array_equal(half, sample.rows["half"][ids].astype(np.float32))
        assert np.array_equal(graph.split("val"), np.flatnonzero(sample.splits == 1))
        assert np.array_equal(graph.internal(sample.external), np.arange(N_NODES))
        with pytest.raises(lodestore.StoreError, match="topology="):
            graph.csc()
        with pytest.raises(lodestore.IdError):
            graph["feat"][[N_NODES]]
        with pytest.raises(lodestore.ReadOnlyError):
            graph.new_tensor("x", "float32")
    with lodestore.connect(address, topology=sample.path) as graph:
        assert len(graph.csc()[1]) == len(sample.edges)


def test_puts_and_pins(copied: Sample, serve: Serve) -> None:
    _, address = serve(copied.path, "--writable")
    new = np.ones((1, 33), np.float32)
    with lodestore.connect(address) as graph, lodestore.connect(address, pin=True) as pinned:
        graph.put("feat", [4], new)
        assert graph.commit() == 2 and graph.version == 2
        assert np.array_equal(graph["feat"][[4]], new)
        assert pinned.version == 1
        assert np.array_equal(pinned["feat"][[4]], copied.rows["feat"][[4]])
        with pytest.raises(lodestore.ReadOnlyError):
            pinned.put("feat", [4], new)
        assert np.array_equal(graph.at(2)["feat"][[4]], new)
        # The servers keep it for the pinned client.
        assert np.array_equal(graph.at(1)["feat"][[4]], copied.rows["feat"][[4]])
        with lodestore.connect(address, version=1) as first:
            assert first.version == 1 and pinned.at().version == 1
        with pytest.raises(lodestore.VersionError, match="version 3"):
            graph.at(3)


@pytest.mark.parametrize("policy", ["oracle", "none"])
def test_an_iteration_over_servers_keeps_to_the_version_of_its_start(
    copied: Sample, serve: Serve, tmp_path: Path, policy: str
) -> None:
    _, address = serve(copied.path, "--writable")
    with lodestore.connect(address, topology=copied.path) as graph:
        schedule = graph.schedule(
            tmp_path / "s", roots="train", fanout=[3, 2], batch=64, epochs=2, seed=5
        )
        batches = graph.iterate(schedule, ["feat"], policy=policy, memory=300_000)  # type: ignore[arg-type]
        taken = [next(batches) for _ in range(2)]
        graph.put("feat", np.arange(N_NODES), np.ones((N_NODES, 33), np.float32))
        graph.commit()
        assert (batches.version, graph.version) == (1, 2)
        for batch in [*taken, *batches]:
            assert np.array_equal(batch["feat"], copied.rows["feat"][batch.nodes])
        assert (next(graph.iterate(schedule, ["feat"]))["feat"] == 1).all()


def test_read_only_servers_refuse_puts(sample: Sample, serve: Serve) -> None:
    _, address = serve(sample.path)
    with lodestore.connect(address) as graph, pytest.raises(lodestore.Error) as caught:
        graph.put("feat", [4], np.ones((1, 33), np.float32))
    assert isinstance(caught.value, OSError)


def test_a_server_that_goes_away(sample: Sample, serve: Serve) -> None:
    server, address = serve(sample.path)
    with lodestore.connect(address, deadline=2.0) as graph:
        assert graph["label"][0] == sample.rows["label"][0]
        server.kill()
        start = time.monotonic()
        with pytest.raises((lodestore.ServerError, lodestore.DeadlineError)):
            graph["feat"][[1, 2, 3]]
        assert time.monotonic() - start < 8
        future = graph.submit("feat", [1])
        with pytest.raises((lodestore.ServerError, lodestore.DeadlineError)):
            future.result()
    with pytest.raises(ConnectionError):
        lodestore.connect(address, deadline=1.0)


def test_a_server_that_goes_away_in_the_middle_of_a_schedule(
    sample: Sample, serve: Serve, tmp_path: Path
) -> None:
    server, address = serve(sample.path)
    threads = threading.active_count()
    with lodestore.connect(address, deadline=2.0, topology=sample.path) as graph:
        schedule = graph.schedule(
            tmp_path / "s", roots="train", fanout=[3, 2], batch=16, epochs=2, seed=5
        )
        batches = graph.iterate(schedule, ["feat", "label"], window=2, policy="none")
        taken = [next(batches) for _ in range(3)]
        state = batches.state_dict()
        server.kill()
        with pytest.raises((lodestore.ServerError, lodestore.DeadlineError)):
            for batch in batches:
                state, taken = batches.state_dict(), [*taken, batch]
        del batches
    for batch in taken:
        assert np.array_equal(batch["feat"], sample.rows["feat"][batch.nodes])
    assert threading.active_count() == threads
    # The process continues with other servers, from the batch where it was.
    _, address = serve(sample.path)
    with lodestore.connect(address) as graph:
        batches = graph.iterate(schedule, ["feat", "label"])
        batches.load_state_dict(state)
        rest = [(batch.epoch, batch.index) for batch in batches]
        assert len(taken) + len(rest) == 2 * schedule.batches()
        assert np.array_equal(graph["feat"][[3]], sample.rows["feat"][[3]])


def test_a_server_that_stands_still_exceeds_the_deadline(sample: Sample, serve: Serve) -> None:
    server, address = serve(sample.path)
    with lodestore.connect(address, deadline=0.5) as graph:
        graph["feat"][[1]]
        with stopped(server):
            with pytest.raises(lodestore.DeadlineError) as caught:
                graph["feat"][[1, 2, 3]]
            assert isinstance(caught.value, TimeoutError)
            with pytest.raises(TimeoutError):
                graph.submit("feat", [1]).result()
        assert np.array_equal(graph["feat"][[2]], sample.rows["feat"][[2]])


def test_a_server_without_room(sample: Sample, serve: Serve) -> None:
    _, address = serve(sample.path)
    graphs = []
    with pytest.raises(lodestore.OverloadedError) as caught:
        # A shard has 256 connections, and more where some are idle for 10 seconds.
        for _ in range(400):
            graphs.append(lodestore.connect(address, deadline=2.0))
            graphs[-1]["label"][0]
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.retry_after is not None and 0 < caught.value.retry_after < 60
    assert len(graphs) >= 256
    assert np.array_equal(graphs[0]["feat"][[2]], sample.rows["feat"][[2]])
    for graph in graphs:
        graph.close()
    with lodestore.connect(address) as graph:
        assert np.array_equal(graph["feat"][[2]], sample.rows["feat"][[2]])


def test_ctrl_c_while_a_server_stands_still(sample: Sample, serve: Serve) -> None:
    server, address = serve(sample.path)
    with lodestore.connect(address, deadline=20.0) as graph:
        graph["feat"][[1]]
        with stopped(server):
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            start = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                graph["feat"][np.arange(N_NODES)]
            took = time.monotonic() - start - 0.3
        assert took < 10, took
        assert np.array_equal(graph["feat"][[2]], sample.rows["feat"][[2]])


class Preempted(Exception):
    """Raised by a handler, to end what it interrupts."""


def test_a_handler_may_ask_where_an_iteration_is_while_it_waits(
    sample: Sample, serve: Serve, tmp_path: Path
) -> None:
    server, address = serve(sample.path)
    with lodestore.connect(address, topology=sample.path) as graph:
        schedule = graph.schedule(
            tmp_path / "s", roots="train", fanout=[3, 2], batch=16, epochs=1, seed=5
        )
        batches = graph.iterate(schedule, ["feat", "label"], window=1, policy="none")
        next(batches)
        seen: list[tuple[dict[str, Any], int, str, dict[str, float]]] = []

        def save(*_: object) -> None:
            seen.append((batches.state_dict(), len(batches), repr(batches), batches.stats()))
            raise Preempted

        before = signal.signal(signal.SIGALRM, save)
        try:
            with stopped(server), pytest.raises(Preempted):
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                for _ in batches:
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        state, left, words, stats = seen[0]
        assert state["batch"] + left == schedule.batches() and f"{left} left" in words
        assert stats["ready"] + stats["waited"] == state["batch"]
        # The batch that was waited for is the next one.
        assert next(batches).index == state["batch"]


def test_a_full_window_does_not_hold_up_the_loop(sample: Sample, serve: Serve) -> None:
    server, address = serve(sample.path)
    with lodestore.connect(address) as graph:
        graph["feat"][[1]]
        queue = graph.queue(window=2)

        async def gather_all() -> list[np.ndarray]:
            with stopped(server):
                futures = [queue.submit("feat", [i]) for i in range(20)]
                await asyncio.sleep(0)
                assert not any(future.done() for future in futures)
            return [await future for future in futures]

        for i, rows in enumerate(asyncio.run(gather_all())):
            assert np.array_equal(rows, sample.rows["feat"][[i]])


def test_rows_that_come_late_wake_the_loop(sample: Sample, serve: Serve) -> None:
    server, address = serve(sample.path)

    async def late(graph: lodestore.Graph) -> np.ndarray:
        stop(server)
        future = graph.submit("feat", [1, 2])
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, server.process.send_signal, signal.SIGCONT)

        async def rows() -> np.ndarray:
            return await future

        # Nothing else wakes it before that.
        return await asyncio.wait_for(rows(), 20)

    with lodestore.connect(address, deadline=15.0) as graph:
        graph["feat"][[1]]
        # With debug, a call from another thread that is not safe raises.
        rows = asyncio.run(late(graph), debug=True)
        assert np.array_equal(rows, sample.rows["feat"][[1, 2]])


def test_bad_addresses_and_tokens(tmp_path: Path) -> None:
    with pytest.raises(lodestore.ServerError, match="HOST:PORT"):
        lodestore.connect("nonsense")
    with pytest.raises(lodestore.ServerError):
        lodestore.connect()
    with pytest.raises(ValueError, match="deadline"):
        lodestore.connect("127.0.0.1:1", deadline=0.0)
    token = tmp_path / "token"
    token.write_text("0123456789abcdefSECRET\n")
    token.chmod(0o644)
    with pytest.raises(lodestore.StoreError, match="chmod 600") as caught:
        lodestore.connect("127.0.0.1:1", token_file=token)
    assert "SECRET" not in str(caught.value)
    with pytest.raises(lodestore.StoreError, match="tls_ca"):
        lodestore.connect("127.0.0.1:1", tls_cert=token, tls_key=token)
