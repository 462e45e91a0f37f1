"""Tensors of torch and batches of a schedule; only where torch is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import N_NODES, Sample

import lodestore

torch = pytest.importorskip("torch")

import lodestore.torch as ltorch  # noqa: E402


def bits(tensor: Any) -> np.ndarray:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.mark.parametrize("name", ["f32", "f16", "f64", "u8", "i8", "i16", "i32", "i64", "bf"])
def test_rows_are_tensors_of_their_dtype(sample: Sample, graph: lodestore.Graph, name: str) -> None:
    ids = torch.tensor([2, 7, 2, N_NODES - 1])
    expected = sample.rows[name][ids.numpy()]
    for given in [ids, ids.int(), ids.numpy(), ids.tolist()]:
        rows = ltorch.gather(graph, name, given)
        assert rows.shape == expected.shape
        assert np.array_equal(bits(rows).view(expected.dtype), expected)
    assert (rows.dtype == torch.bfloat16) == (name == "bf")
    out = torch.zeros_like(rows)
    assert ltorch.gather(graph, name, ids, out=out) is out
    assert torch.equal(bits_of(out), bits_of(rows))
    assert torch.equal(bits_of(ltorch.gather(graph, name, ids, pin=True)), bits_of(rows))


def bits_of(tensor: Any) -> Any:
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def test_bad_arguments(graph: lodestore.Graph) -> None:
    with pytest.raises(lodestore.ShapeError):
        ltorch.gather(graph, "feat", [1, 2], out=torch.empty(2, 32))
    with pytest.raises(lodestore.ShapeError, match="contiguous"):
        ltorch.gather(graph, "feat", [1, 2], out=torch.empty(33, 2).T)
    with pytest.raises(lodestore.DtypeError):
        ltorch.gather(graph, "feat", [1, 2], out=torch.empty(2, 33, dtype=torch.float64))
    with pytest.raises(lodestore.DtypeError, match="CPU"):
        ltorch.gather(graph, "feat", [1, 2], out=torch.empty(2, 33, device="meta"))
    with pytest.raises(lodestore.DtypeError, match="gradient"):
        ltorch.gather(graph, "feat", [1, 2], out=torch.empty(2, 33, requires_grad=True))
    with pytest.raises(lodestore.IdError):
        ltorch.gather(graph, "feat", torch.tensor([-1]))
    with pytest.raises(lodestore.DtypeError, match="mask"):
        ltorch.gather(graph, "feat", torch.ones(N_NODES, dtype=torch.bool))
    with pytest.raises(lodestore.UnknownTensorError):
        ltorch.gather(graph, "no", [1])


class RowsOf(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, graph: lodestore.Graph) -> None:
        self.graph = graph

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        rows = ltorch.gather(self.graph, "feat", [index, index + 1])
        return rows, rows.is_shared()


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_gather_into_shared_memory(
    sample: Sample, graph: lodestore.Graph, workers: int
) -> None:
    loader = torch.utils.data.DataLoader(RowsOf(graph), batch_size=None, num_workers=workers)
    for index, (rows, was_shared) in enumerate(loader):
        assert np.array_equal(rows.numpy(), sample.rows["feat"][index : index + 2])
        assert was_shared == (workers > 0)


def schedule_of(graph: lodestore.Graph, path: Path) -> lodestore.Schedule:
    return graph.schedule(path, roots="train", fanout=[3, 2], batch=64, epochs=2, seed=5)


def test_a_schedule_is_a_dataset(sample: Sample, graph: lodestore.Graph, tmp_path: Path) -> None:
    schedule = schedule_of(graph, tmp_path / "s")
    dataset = ltorch.ScheduleDataset(graph, schedule, ["feat", "bf"], window=4)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    assert len(loader) == len(dataset) == schedule.batches()
    expected = list(graph.iterate(schedule, ["feat"]))
    found = [batch for _ in range(2) for batch in loader]
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert (batch.epoch, batch.index, batch.n_roots) == (
            other.epoch,
            other.index,
            other.n_roots,
        )
        nodes = batch.nodes.numpy()
        assert np.array_equal(nodes, other.nodes)
        assert np.array_equal(batch["feat"].numpy(), sample.rows["feat"][nodes])
        assert np.array_equal(bits(batch["bf"]).view(np.uint16), sample.rows["bf"][nodes])
        for block, other_block in zip(batch.blocks, other.blocks, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(block, other_block, strict=True))
    assert batch.to("meta")["feat"].device.type == "meta"
    assert dataset.stats()["ready"] + dataset.stats()["waited"] == len(found)
    with pytest.raises(ValueError, match="all 2 epochs"):
        next(iter(dataset))


def test_a_dataset_resumes(graph: lodestore.Graph, tmp_path: Path) -> None:
    schedule = schedule_of(graph, tmp_path / "s")
    whole = ltorch.ScheduleDataset(graph, schedule, ["feat"])
    expected = [batch["feat"] for _ in range(2) for batch in whole]
    first = ltorch.ScheduleDataset(graph, schedule, ["feat"])
    start = [batch["feat"] for _, batch in zip(range(3), first, strict=False)]
    second = ltorch.ScheduleDataset(graph, schedule, ["feat"])
    second.load_state_dict(first.state_dict())
    rest = [batch["feat"] for _ in range(2) for batch in second]
    assert len(start + rest) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(start + rest, expected, strict=True))


def test_of_two_iterators_of_a_dataset_the_later_one_goes_on(
    graph: lodestore.Graph, tmp_path: Path
) -> None:
    dataset = ltorch.ScheduleDataset(graph, schedule_of(graph, tmp_path / "s"), ["feat"])
    first = iter(dataset)
    next(first)
    rest = list(dataset)
    assert len(rest) == len(dataset) - 1
    with pytest.raises(RuntimeError, match="a later iterator"):
        next(first)


def test_a_batch_is_pinned_where_that_is_possible(graph: lodestore.Graph, tmp_path: Path) -> None:
    dataset = ltorch.ScheduleDataset(graph, schedule_of(graph, tmp_path / "s"), ["feat"])
    batch = next(iter(dataset))
    if torch.cuda.is_available():
        pinned = batch.pin_memory()
        assert pinned["feat"].is_pinned() and pinned.nodes.is_pinned()
        assert torch.equal(pinned["feat"], batch["feat"])
    # A DataLoader looks for it.
    assert callable(batch.pin_memory)


def test_a_dataset_refuses_workers(graph: lodestore.Graph, tmp_path: Path) -> None:
    dataset = ltorch.ScheduleDataset(graph, schedule_of(graph, tmp_path / "s"), ["feat"])
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(ValueError, match="num_workers must be 0"):
        next(iter(loader))
