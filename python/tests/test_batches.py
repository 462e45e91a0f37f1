"""Schedules, batches and futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import N_NODES, Sample

import lodestore


def schedule_of(graph: lodestore.Graph, path: Path, **more: object) -> lodestore.Schedule:
    settings: dict = {
        "roots": "train",
        "fanout": [3, 2],
        "batch": 64,
        "epochs": 3,
        "seed": 5,
    }
    return graph.schedule(path, **{**settings, **more})


@pytest.fixture
def schedule(graph: lodestore.Graph, tmp_path: Path) -> lodestore.Schedule:
    return schedule_of(graph, tmp_path / "s")


def test_schedules(graph: lodestore.Graph, tmp_path: Path, sample: Sample) -> None:
    schedule = schedule_of(graph, tmp_path / "s")
    n_train = int((sample.splits == 0).sum())
    assert schedule.epochs == 3 and schedule.batches() == -(-n_train // 64)
    assert schedule.path == tmp_path / "s" and schedule.workers == 1
    written = (tmp_path / "s").stat().st_mtime_ns
    again = schedule_of(graph, tmp_path / "s")
    assert (tmp_path / "s").stat().st_mtime_ns == written, "it is taken as it is"
    copy = pickle.loads(pickle.dumps(schedule))
    assert schedule.digest == again.digest == copy.digest
    assert schedule_of(graph, tmp_path / "t", seed=6).digest != schedule.digest
    roots = graph.split("train")
    assert schedule_of(graph, tmp_path / "u", roots=roots).digest == schedule.digest
    assert "3 epochs" in repr(schedule)
    for wrong in [
        {"batch": 0},
        {"epochs": 0},
        {"fanout": [0]},
        {"fanout": []},
        {"roots": "nobody"},
    ]:
        with pytest.raises(ValueError):
            schedule_of(graph, tmp_path / "w", **wrong)
    with pytest.raises(lodestore.IdError):
        schedule_of(graph, tmp_path / "w", roots=[N_NODES])


@pytest.mark.parametrize(
    ("policy", "memory"),
    [("oracle", None), ("oracle", 200_000), ("hot", None), ("hot", 200_000), ("none", None)],
)
@pytest.mark.parametrize(("window", "together"), [(16, 8), (1, 1), (0, 1)])
def test_batches_have_their_rows(
    sample: Sample,
    graph: lodestore.Graph,
    schedule: lodestore.Schedule,
    policy: str,
    memory: int | None,
    window: int,
    together: int,
) -> None:
    batches = graph.iterate(
        schedule,
        ["feat", "label", "bf"],
        window=window,
        together=together,
        policy=policy,  # type: ignore[arg-type]
        memory=memory,
    )
    expected = schedule.epochs * schedule.batches()
    assert len(batches) == expected
    roots: dict[int, list[int]] = {}
    kept = []
    for number, batch in enumerate(batches):
        assert (batch.epoch, batch.index) == divmod(number, schedule.batches())
        nodes = batch.nodes
        assert np.array_equal(batch["feat"], sample.rows["feat"][nodes])
        assert np.array_equal(batch["label"], sample.rows["label"][nodes])
        assert np.array_equal(batch["bf"].view(np.uint16), sample.rows["bf"][nodes])
        roots.setdefault(batch.epoch, []).extend(nodes[: batch.n_roots].tolist())
        n_dst = len(nodes)
        for indptr, indices in batch.blocks:
            assert indices.max(initial=-1) < n_dst
            n_dst = len(indptr) - 1
            destination = np.repeat(np.arange(n_dst), np.diff(indptr))
            edges = set(zip(nodes[indices].tolist(), nodes[destination].tolist(), strict=True))
            assert edges <= sample.edges
        assert n_dst == batch.n_roots and len(batch.blocks) == 2
        assert batch.met in {"ready", "waited", "default_path"} and batch.wait_seconds >= 0
        kept.append((batch["feat"], nodes))
    assert len(kept) == expected
    for of_epoch in roots.values():
        assert sorted(of_epoch) == np.flatnonzero(sample.splits == 0).tolist()
    for rows, nodes in kept:
        assert np.array_equal(rows, sample.rows["feat"][nodes]), "arrays stay when batches go"
    stats = batches.stats()
    assert stats["ready"] + stats["waited"] == expected
    if policy == "none":
        assert stats["memory_rows"] == 0
    elif memory is None:
        read = stats["read_rows"] + stats["filled_rows"]
        assert read <= N_NODES and stats["hit_rows"] > 0, "each row is read once"


def test_a_run_goes_on_in_the_middle_of_an_epoch(
    graph: lodestore.Graph, schedule: lodestore.Schedule
) -> None:
    whole = [(b.epoch, b.index, b["feat"]) for b in graph.iterate(schedule, ["feat"])]
    for taken in [0, 1, schedule.batches(), schedule.batches() + 2, len(whole)]:
        first = graph.iterate(schedule, ["feat"])
        start = [(b.epoch, b.index, b["feat"]) for _, b in zip(range(taken), first, strict=False)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        rest = graph.iterate(schedule, ["feat"])
        rest.load_state_dict(state)
        start += [(b.epoch, b.index, b["feat"]) for b in rest]
        assert len(start) == len(whole)
        for (epoch, index, rows), (epoch2, index2, rows2) in zip(start, whole, strict=True):
            assert (epoch, index) == (epoch2, index2) and np.array_equal(rows, rows2)


def test_states_of_other_runs(
    graph: lodestore.Graph, schedule: lodestore.Schedule, tmp_path: Path
) -> None:
    batches = graph.iterate(schedule, ["feat"])
    state = batches.state_dict()
    other = graph.iterate(schedule_of(graph, tmp_path / "o", seed=9), ["feat"])
    with pytest.raises(ValueError, match="schedule"):
        other.load_state_dict(state)
    for wrong in [{"epoch": 4}, {"batch": schedule.batches()}, {"worker": 1}]:
        with pytest.raises(ValueError):
            batches.load_state_dict({**state, **wrong})
    with pytest.raises(ValueError, match="no `epoch`"):
        batches.load_state_dict({k: v for k, v in state.items() if k != "epoch"})


def test_bad_walks(
    graph: lodestore.Graph, schedule: lodestore.Schedule, copied: Sample, tmp_path: Path
) -> None:
    with pytest.raises(lodestore.UnknownTensorError):
        graph.iterate(schedule, ["feat", "no"])
    with pytest.raises(ValueError, match="at least one"):
        graph.iterate(schedule, [])
    with pytest.raises(ValueError, match="policy"):
        graph.iterate(schedule, ["feat"], policy="lru")  # type: ignore[arg-type]
    with pytest.raises(lodestore.ScheduleError):
        graph.iterate(schedule, ["feat"], worker=1)
    batch = next(iter(graph.iterate(schedule, ["feat"])))
    with pytest.raises(KeyError, match="feat"):
        batch["label"]
    out = np.empty((len(batch.nodes), 33), np.float32)
    assert batch.rows("feat", out=out) is out and np.array_equal(out, batch["feat"])
    with pytest.raises(lodestore.ShapeError):
        batch.rows("feat", out=out[:-1])


def test_workers_have_their_own_batches(
    graph: lodestore.Graph, tmp_path: Path, sample: Sample
) -> None:
    schedule = schedule_of(graph, tmp_path / "two", workers=2, epochs=1)
    roots = [
        b.nodes[: b.n_roots]
        for worker in range(2)
        for b in graph.iterate(schedule, ["label"], worker=worker)
    ]
    assert sorted(np.concatenate(roots)) == np.flatnonzero(sample.splits == 0).tolist()


def test_futures(sample: Sample, graph: lodestore.Graph) -> None:
    rng = np.random.default_rng(8)
    wanted = [rng.integers(0, N_NODES, n) for n in rng.integers(0, 200, 200)]
    futures = [graph.submit("feat", ids) for ids in wanted]
    for ids, future in zip(wanted, futures, strict=True):
        rows = future.result()
        assert rows.shape == (len(ids), 33) and np.array_equal(rows, sample.rows["feat"][ids])
        assert future.done() and future.wait(0) and future.result() is rows
    assert "done" in repr(futures[0])
    for name in ["label", "u8", "f64", "half", "bf"]:
        rows = graph.submit(name, [5, 5, 1]).result()
        assert np.array_equal(rows.view(sample.rows[name].dtype), sample.rows[name][[5, 5, 1]])
    out = np.empty((2, 33), np.float32)
    assert graph.submit("feat", [1, 2], out=out).result() is out
    assert np.array_equal(out, sample.rows["feat"][[1, 2]])
    with pytest.raises(lodestore.ShapeError):
        graph.submit("feat", [1, 2], out=out[:1])
    future = graph.submit("feat", [1, 2], out=out)
    out.setflags(write=False)
    for _ in range(2):
        with pytest.raises((lodestore.Error, ValueError)):
            future.result()
    with pytest.raises(lodestore.IdError):
        graph.submit("feat", [-1])
    called: list[int] = []
    future = graph.submit("feat", [1])
    future.wait()
    future.add_done_callback(lambda: called.append(1))
    assert called == [1]


def test_futures_are_awaited(sample: Sample, graph: lodestore.Graph) -> None:
    async def gather_all() -> list[np.ndarray]:
        # The others wait behind it, so that threads of the queue wake the loop.
        long = graph.submit("feat", np.tile(np.arange(graph.nodes), 2000))
        futures = [graph.submit("feat", [i, i + 1]) for i in range(40)]
        rows = await asyncio.gather(*(asyncio.wait_for(future, 60) for future in futures))
        await long
        return rows

    # Debug mode refuses a call of another thread that is not thread-safe.
    for i, rows in enumerate(asyncio.run(gather_all(), debug=True)):
        assert np.array_equal(rows, sample.rows["feat"][[i, i + 1]])


def test_futures_fit_the_standard_library(sample: Sample, graph: lodestore.Graph) -> None:
    futures = [graph.submit("feat", [i]).concurrent() for i in range(20)]
    done, pending = concurrent.futures.wait(futures, timeout=60)
    assert len(done) == 20 and not pending
    for i, future in enumerate(futures):
        assert np.array_equal(future.result(), sample.rows["feat"][[i]])

    async def gather() -> np.ndarray:
        return await asyncio.wrap_future(graph.submit("feat", [3]).concurrent())

    assert np.array_equal(asyncio.run(gather()), sample.rows["feat"][[3]])
    out = np.empty((1, *sample.rows["feat"].shape[1:]), sample.rows["feat"].dtype)
    failing = graph.submit("feat", [1], out=out)
    assert graph.submit("feat", [1]).exception(timeout=60) is None
    out.setflags(write=False)
    error = failing.exception(timeout=60)
    assert isinstance(error, (lodestore.Error, ValueError))
    assert failing.concurrent().exception(timeout=60) is error


def test_a_queue_bounds_its_bytes(sample: Sample, graph: lodestore.Graph) -> None:
    row_bytes = sample.rows["feat"][0].nbytes
    queue = graph.queue(max_bytes=40 * row_bytes)
    assert queue.window_bytes == 20 * row_bytes
    assert pickle.loads(pickle.dumps(queue)).window_bytes == queue.window_bytes
    assert queue.stats()["peak_bytes"] == 0
    for first in range(0, 200, 5):
        ids = np.arange(first, first + 5)
        assert np.array_equal(queue.submit("feat", ids).result(), sample.rows["feat"][ids])
    assert 5 * row_bytes <= queue.stats()["peak_bytes"] <= 40 * row_bytes
    # One request is taken whatever its size.
    rows = queue.submit("feat", np.arange(100)).result()
    assert np.array_equal(rows, sample.rows["feat"][:100])
    assert queue.stats()["peak_bytes"] >= 100 * row_bytes
    assert graph.queue(memory=1000, tensors=["feat"]).window_bytes > 0
    with pytest.raises(ValueError, match="leaves nothing beside memory"):
        graph.queue(memory=1000, tensors=["feat"], max_bytes=1000)


def test_a_callback_may_use_its_queue(sample: Sample, graph: lodestore.Graph) -> None:
    queue = graph.queue(window=1)
    later: list[lodestore.Future] = []
    future = queue.submit("feat", [1])
    future.add_done_callback(lambda: later.append(queue.submit("feat", [2])))
    for i in range(3, 20):
        rows = queue.submit("feat", [i]).result(timeout=60)
        assert np.array_equal(rows, sample.rows["feat"][[i]])
    while not later:
        time.sleep(0.001)
    assert np.array_equal(later[0].result(timeout=60), sample.rows["feat"][[2]])


@pytest.mark.parametrize("memory", [None, 0, 40_000, 1 << 24])
def test_queues_have_bounds_and_memory_of_their_own(
    sample: Sample, graph: lodestore.Graph, memory: int | None
) -> None:
    tensors = ["feat", "label"]
    queue = graph.queue(window=4, together=3, memory=memory, tensors=tensors)
    assert "window 4, together 3" in repr(queue) and queue.graph is graph
    rng = np.random.default_rng(8)
    wanted = [rng.permutation(N_NODES)[:n] for n in rng.integers(0, 400, 60)]
    for name in [*tensors, "bf"]:
        futures = [queue.submit(name, ids) for ids in wanted]
        for ids, future in zip(wanted, futures, strict=True):
            rows = future.result()
            assert np.array_equal(rows.view(sample.rows[name].dtype), sample.rows[name][ids])
    hits, read = queue.stats()["hit_rows"], queue.stats()["read_rows"]
    if memory is None:
        assert hits == 0 and read > N_NODES
    elif memory > 1 << 20:
        # Two requests that are read concurrently may both read a row.
        assert hits > 0 and read < 2 * 2 * N_NODES
    else:
        assert read > 0 and (hits > 0) == (memory > 0)
    again = pickle.loads(pickle.dumps(queue))
    assert repr(again) == repr(queue)
    out = np.empty((2, 33), np.float32)
    assert again.submit("feat", [1, 2], out=out).result() is out
    assert np.array_equal(out, sample.rows["feat"][[1, 2]])


def test_memory_of_a_queue_follows_the_graph(copied: Sample) -> None:
    ids, new = [7, 9], np.ones((2, 33), np.float32)
    with lodestore.open(copied.path, writable=True) as graph:
        queue = graph.queue(memory=1 << 24, tensors=["feat"])
        for _ in range(2):
            assert np.array_equal(queue.submit("feat", ids).result(), copied.rows["feat"][ids])
        assert (queue.stats()["hit_rows"], queue.stats()["read_rows"]) == (2, 2)
        graph.put("feat", ids, new)
        assert np.array_equal(queue.submit("feat", ids).result(), copied.rows["feat"][ids])
        graph.commit()
        assert np.array_equal(queue.submit("feat", ids).result(), new)
        stats = queue.stats()
        assert (stats["hit_rows"], stats["read_rows"]) == (0, 2), "a commit empties it"
        with graph.new_tensor("h", "float32") as writer:
            writer.write(0, np.arange(N_NODES, dtype=np.float32))
        assert queue.submit("h", [5]).result() == [5]
        assert np.array_equal(queue.submit("feat", ids).result(), new)
    with pytest.raises(lodestore.ClosedError):
        queue.submit("feat", ids)
    # The queue has not kept the lock of the graph.
    lodestore.open(copied.path, writable=True).close()


def test_bad_queues(graph: lodestore.Graph) -> None:
    for wrong in [{"window": 0}, {"together": 0}, {"memory": 1 << 20}]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            graph.queue(**wrong)
    with pytest.raises(lodestore.UnknownTensorError, match="no"):
        graph.queue(memory=1 << 20, tensors=["no"])
    queue = graph.queue()
    with pytest.raises(lodestore.UnknownTensorError):
        queue.submit("no", [1])
    with pytest.raises(lodestore.IdError):
        queue.submit("feat", [N_NODES])
    with pytest.raises(lodestore.ShapeError):
        queue.submit("feat", [1, 2], out=np.empty((1, 33), np.float32))


def commit_ones(graph: lodestore.Graph) -> np.ndarray:
    """Puts ones in the place of all rows of `feat`, and commits."""
    new = np.ones((N_NODES, 33), np.float32)
    graph.put("feat", np.arange(N_NODES), new)
    graph.commit()
    return new


@pytest.mark.parametrize("policy", ["oracle", "hot", "none"])
@pytest.mark.parametrize("taken", [0, 3])
def test_an_iteration_keeps_to_the_version_of_its_start(
    copied: Sample, tmp_path: Path, policy: Any, taken: int
) -> None:
    with lodestore.open(copied.path, writable=True) as graph:
        schedule = schedule_of(graph, tmp_path / "s")
        # Memory for some rows alone: the others are read again in each epoch.
        batches = graph.iterate(schedule, ["feat", "label"], policy=policy, memory=300_000)
        old = [next(batches) for _ in range(taken)]
        commit_ones(graph)
        assert (batches.version, graph.version) == (1, 2)
        for batch in [*old, *batches]:
            assert np.array_equal(batch["feat"], copied.rows["feat"][batch.nodes])
        later = graph.iterate(schedule, ["feat"])
        assert later.version == 2 and later.version_id == graph.version_id
        assert all((batch["feat"] == 1).all() for batch in later)


def test_a_state_is_of_one_version(copied: Sample, tmp_path: Path) -> None:
    with lodestore.open(copied.path, writable=True) as graph:
        schedule = schedule_of(graph, tmp_path / "s")
        batches = graph.iterate(schedule, ["feat"])
        next(batches)
        state = pickle.loads(pickle.dumps(batches.state_dict()))
        assert state["version"] == graph.version_id
        new = commit_ones(graph)
        later = graph.iterate(schedule, ["feat"])
        with pytest.raises(lodestore.VersionError, match=r"graph\.at") as caught:
            later.load_state_dict(state)
        assert state["version"] in str(caught.value) and graph.version_id in str(caught.value)
        assert len(later) == len(batches) + 1, "a state that is refused moves nothing"
        later.load_state_dict(state, other_version=True)
        batch = next(later)
        assert batch.index == 1 and np.array_equal(batch["feat"], new[batch.nodes])
        again = graph.at(state["version"]).iterate(schedule, ["feat"])
        again.load_state_dict(state)
        batch = next(again)
        assert batch.index == 1
        assert np.array_equal(batch["feat"], copied.rows["feat"][batch.nodes])
        del state["version"]
        again.load_state_dict(state)


def test_memory_of_a_queue_is_of_the_version_of_the_request(copied: Sample) -> None:
    ids = np.arange(N_NODES)
    with lodestore.open(copied.path, writable=True) as graph:
        queue = graph.queue(memory=1 << 20, tensors=["feat"], window=64, together=1)
        futures = [queue.submit("feat", ids) for _ in range(30)]
        new = commit_ones(graph)
        assert np.array_equal(queue.submit("feat", ids).result(), new)
        for future in futures:
            assert np.array_equal(future.result(), copied.rows["feat"]), "of one version"


def test_a_graph_at_a_version(copied: Sample) -> None:
    with lodestore.open(copied.path, writable=True) as graph:
        first = graph.at()
        new = commit_ones(graph)
        assert (first.version, graph.version, graph.at().version) == (1, 2, 2)
        assert np.array_equal(first["feat"][:], copied.rows["feat"])
        for version in [2, graph.version_id]:
            at = graph.at(version)
            assert at.version == 2 and at.version_id == graph.version_id
            assert np.array_equal(at["feat"][:], new)
        for wrong in ["2:", "two", "2:12"]:
            with pytest.raises(lodestore.VersionError, match="expected a version such as"):
                graph.at(wrong)
        with pytest.raises(lodestore.VersionError):
            graph.at(3)
    with lodestore.open(copied.path, version=first.version_id) as old:
        assert np.array_equal(old["feat"][:], copied.rows["feat"])
