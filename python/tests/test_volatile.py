"""Volatile tensors: stamps, claims and waits, in this process and at servers."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import N_NODES, N_PARTS, Sample, Server

import lodestore

Serve = Callable[..., tuple[Server, str]]


@pytest.fixture(params=["process", "servers"])
def volatile(request: Any, sample: Sample, serve: Serve) -> Iterator[lodestore.Volatile]:
    if request.param == "process":
        with lodestore.open(sample.path) as graph:
            yield graph.volatile(memory=64 << 20)
    else:
        _, address = serve(sample.path, "--volatile", "other:1xf32")
        with lodestore.connect(address) as graph:
            yield graph.volatile()


@pytest.fixture
def parts(graph: lodestore.Graph) -> list[range]:
    return graph.parts


def test_parts_are_ranges_of_all_nodes(parts: list[range]) -> None:
    assert len(parts) == N_PARTS
    assert [node for part in parts for node in part] == list(range(N_NODES))


def test_rows_have_stamps(volatile: lodestore.Volatile, parts: list[range]) -> None:
    volatile.declare("h", "float16", 5)
    volatile.declare("h", "float16", 5)
    ids = np.array([7, N_NODES - 1, 7, 3])
    rows, stamps = volatile.pull("h", ids)
    assert not rows.any() and rows.shape == (4, 5) and rows.dtype == np.float16
    assert stamps.dtype == np.int64 and (stamps == -1).all()
    values = np.arange(15, dtype=np.float16).reshape(3, 5)
    with volatile.publisher() as publisher:
        assert publisher.claim("h", parts) == N_NODES
        publisher.publish("h", [3, 7, N_NODES - 1], values, 4)
        rows, stamps = volatile.pull("h", ids)
        assert np.array_equal(rows, values[[1, 2, 1, 0]]) and (stamps == 4).all()
        publisher.publish("h", [3], values[:1] + 1, 6)
        out = np.ones((4, 5), np.float16)
        rows, stamps = volatile.pull("h", ids, 5, out=out)
        assert rows is out and stamps.tolist() == [-1, -1, -1, 6]
        assert not rows[:3].any() and np.array_equal(rows[3], values[0] + 1)
        with pytest.raises(lodestore.VolatileError, match="later stamp"):
            publisher.publish("h", [3], values[:1], 5)
    with pytest.raises(lodestore.ClosedError):
        publisher.publish("h", [3], values[:1], 7)
    assert volatile.pull("h", ids)[1].tolist() == [4, 4, 4, 6], "rows stay after the claims"


def test_a_pull_waits_for_its_stamp(volatile: lodestore.Volatile, parts: list[range]) -> None:
    volatile.declare("w", "float32", 2)
    start = time.monotonic()
    _, stamps = volatile.pull("w", [1], wait=0.3)
    assert stamps.tolist() == [-1] and 0.3 <= time.monotonic() - start < 5
    with volatile.publisher() as publisher:
        publisher.claim("w", parts)
        publish = (publisher.publish, ("w", [1], np.ones((1, 2), np.float32), 9))
        timer = threading.Timer(0.3, *publish)
        timer.start()
        rows, stamps = volatile.pull("w", [1], 9, wait=30.0)
        assert rows.all() and stamps.tolist() == [9]
        timer.join()
        assert volatile.pull("w", [1], 9, wait=None)[1].tolist() == [9]


def test_claims_exclude_each_other(volatile: lodestore.Volatile, parts: list[range]) -> None:
    volatile.declare("c", "int64", range_rows=10)
    one, other = volatile.publisher(), volatile.publisher()
    assert one.claim("c", [range(10)]) == 10
    with pytest.raises(lodestore.VolatileError):
        other.claim("c", [range(10)])
    with pytest.raises(lodestore.VolatileError, match="whole ranges"):
        other.claim("c", [range(10, 15)])
    with pytest.raises(lodestore.VolatileError, match="claim"):
        other.publish("c", [1], [5], 1)
    one.close()
    one.close()
    assert other.claim("c", [range(10)]) == 10
    other.publish("c", [1], [5], 1)
    assert volatile.pull("c", [1])[0].tolist() == [5]
    other.close()


def test_bad_arguments(volatile: lodestore.Volatile, parts: list[range]) -> None:
    volatile.declare("b", "float32", 2)
    with pytest.raises(lodestore.VolatileError):
        volatile.declare("b", "float32", 3)
    with pytest.raises(lodestore.UnknownTensorError):
        volatile.pull("nothing", [1])
    with pytest.raises(lodestore.IdError):
        volatile.pull("b", [N_NODES])
    with pytest.raises(lodestore.ShapeError):
        volatile.pull("b", [1], out=np.empty((1, 3), np.float32))
    with pytest.raises(ValueError, match="wait"):
        volatile.pull("b", [1], wait=-1.0)
    with volatile.publisher() as publisher:
        publisher.claim("b", parts)
        with pytest.raises(lodestore.ShapeError):
            publisher.publish("b", [1, 2], np.zeros((1, 2), np.float32), 1)
        with pytest.raises(lodestore.DtypeError):
            publisher.publish("b", [1], np.zeros((1, 2)), 1)
        with pytest.raises(lodestore.IdError):
            publisher.publish("b", [-1], np.zeros((1, 2), np.float32), 1)
        with pytest.raises(ValueError, match="step"):
            publisher.claim("b", [range(0, 10, 2)])


def test_ctrl_c_ends_a_wait(volatile: lodestore.Volatile) -> None:
    volatile.declare("i", "float32")
    # A finalizer that runs when the signal comes would swallow it.
    gc.collect()
    timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        volatile.pull("i", [1], wait=30.0)
    assert time.monotonic() - start < 10


def test_memory_is_that_of_the_place(sample: Sample, graph: lodestore.Graph, serve: Serve) -> None:
    with pytest.raises(lodestore.VolatileError, match="memory"):
        graph.volatile(memory=1000).declare("h", "float32", 100)
    _, address = serve(sample.path)
    with lodestore.connect(address) as servers, pytest.raises(ValueError, match="--memory"):
        servers.volatile(memory=1 << 20)
