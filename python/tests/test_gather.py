"""Gathers against numpy: types of elements and ids, shapes, `out`, threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import DTYPES, N_NODES, Sample
from hypothesis import given, settings
from hypothesis import strategies as st

import lodestore

ID_TYPES = [np.int64, np.int32, np.uint32, np.uint64]
TENSORS = [*DTYPES, "feat", "label", "half"]


@pytest.mark.parametrize("id_type", ID_TYPES)
@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("with_out", [False, True])
def test_rows_are_those_of_numpy(
    sample: Sample, graph: lodestore.Graph, tensor: str, id_type: type, with_out: bool
) -> None:
    rows = sample.rows[tensor]
    ids = np.random.default_rng(1).integers(0, N_NODES, 500).astype(id_type)
    ids[:2] = [0, N_NODES - 1]
    out = np.full((500, *rows.shape[1:]), 77, rows.dtype) if with_out else None
    found = graph.gather(tensor, ids, out=out)
    assert found.dtype == rows.dtype and found.shape == rows[ids].shape
    assert np.array_equal(found, rows[ids])
    if with_out:
        assert found is out


@given(
    ids=st.lists(st.integers(0, N_NODES - 1), max_size=60),
    id_type=st.sampled_from(ID_TYPES),
    stride=st.integers(1, 3),
    is_reversed=st.booleans(),
    tensor=st.sampled_from(TENSORS),
)
@settings(max_examples=150, deadline=None)
def test_any_ids_in_any_layout(
    sample: Sample, ids: list[int], id_type: type, stride: int, is_reversed: bool, tensor: str
) -> None:
    spread = np.full(len(ids) * stride, 2**31 - 1, id_type)
    spread[::stride] = ids
    view = spread[::stride]
    expected = np.array(ids, np.int64)
    if is_reversed:
        view, expected = view[::-1], expected[::-1]
    with lodestore.open(sample.path) as graph:
        assert np.array_equal(graph.gather(tensor, view), sample.rows[tensor][expected])
        assert np.array_equal(graph[tensor][ids], sample.rows[tensor][np.array(ids, np.int64)])


def test_index_forms_of_a_tensor(sample: Sample, graph: lodestore.Graph) -> None:
    feat, rows = graph["feat"], sample.rows["feat"]
    assert np.array_equal(feat[17], rows[17]) and feat[17].shape == (33,)
    assert graph["label"][5] == sample.rows["label"][5]
    assert np.array_equal(feat[np.int32(17)], rows[17])
    for cut in [slice(None), slice(3, 9), slice(10, 2, -3), slice(-4, None), slice(5, 5)]:
        assert np.array_equal(feat[cut], rows[cut])
    assert np.array_equal(np.asarray(feat), rows)
    assert len(feat) == N_NODES and feat.shape == rows.shape and feat.width == 33
    assert feat.dtype == np.float32 and feat.name == "feat" and feat.graph is graph
    with pytest.raises(TypeError, match="row by row"):
        iter(feat)
    with pytest.raises(lodestore.DtypeError, match="nodes alone"):
        feat[1, 2]


def test_unaligned_and_swapped_ids_are_copied(sample: Sample, graph: lodestore.Graph) -> None:
    ids = np.array([5, 2900, 7], np.int64)
    raw = np.zeros(25, np.uint8)
    raw[1:] = ids.view(np.uint8)
    for odd in [raw[1:].view(np.int64), ids.astype(">i8"), ids.astype(">u4")]:
        assert np.array_equal(graph.gather("feat", odd), sample.rows["feat"][ids])


def test_widening(sample: Sample, graph: lodestore.Graph) -> None:
    ids = np.arange(0, N_NODES, 7)
    for tensor in [*DTYPES, "half"]:
        for dtype in ["float32", np.float32, np.dtype("f4")]:
            found = graph.gather(tensor, ids, dtype=dtype)
            assert found.dtype == np.float32
            assert np.array_equal(found, sample.rows[tensor][ids].astype(np.float32))
    out = np.empty((len(ids), 33), np.float32)
    assert graph.gather("half", ids, dtype="float32", out=out) is out
    assert np.array_equal(out, sample.rows["half"][ids].astype(np.float32))
    wide = (sample.rows["bf"][ids].astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(graph.gather("bf", ids, dtype="float32"), wide)
    with pytest.raises(lodestore.DtypeError, match="float32"):
        graph.gather("half", ids, out=out)
    with pytest.raises(lodestore.DtypeError, match="as stored"):
        graph.gather("feat", ids, dtype="float64")


def test_bfloat16(sample: Sample, graph: lodestore.Graph) -> None:
    ids = np.array([3, 3, 2999])
    bits = sample.rows["bf"][ids]
    found = graph.gather("bf", ids)
    assert np.array_equal(found.view(np.uint16), bits)
    try:
        import ml_dtypes
    except ImportError:
        assert found.dtype == np.uint16
    else:
        assert found.dtype == ml_dtypes.bfloat16 and graph["bf"].dtype == ml_dtypes.bfloat16
    for dtype in [np.uint16, np.int16, found.dtype]:
        out = np.zeros((3, 33), dtype)
        assert graph.gather("bf", ids, out=out) is out
        assert np.array_equal(out.view(np.uint16), bits)


def test_bad_ids(graph: lodestore.Graph) -> None:
    for bad, position in [(-1, 0), (N_NODES, 2), (2**40, 1), (-(2**40), 1)]:
        ids = [1, 2, 3]
        ids[position] = bad
        with pytest.raises(lodestore.IdError) as caught:
            graph.gather("feat", ids)
        error = caught.value
        assert isinstance(error, IndexError) and (error.id, error.position) == (bad, position)
        assert str(bad) in str(error) and f"{N_NODES} nodes" in str(error)
    with pytest.raises(IndexError):
        graph["feat"][-1]
    with pytest.raises(IndexError):
        graph["feat"][2**70]
    mask = np.zeros(N_NODES, bool)
    for bad_mask in [mask, [True, False]]:
        with pytest.raises(TypeError, match=r"np\.flatnonzero"):
            graph["feat"][bad_mask]
    for wrong in [np.zeros(2), np.zeros(2, np.int16), ["a"], np.zeros(2, object), [1.5]]:
        with pytest.raises(lodestore.DtypeError):
            graph.gather("feat", wrong)
    for wrong in [np.zeros((2, 2), np.int64), np.int64(3), [[1]]]:
        with pytest.raises(lodestore.ShapeError):
            graph.gather("feat", wrong)
    big = np.array([2**63 + 1], np.uint64)
    with pytest.raises(lodestore.IdError) as caught:
        graph.gather("feat", big)
    assert caught.value.id == 2**63 + 1
    with pytest.raises(KeyError) as unknown:
        graph.gather("nothing", [1])
    assert isinstance(unknown.value, lodestore.UnknownTensorError)
    assert "feat" in str(unknown.value) and "nothing" in str(unknown.value)


def test_bad_out(graph: lodestore.Graph) -> None:
    ids = np.arange(4)
    for shape in [(4, 32), (3, 33), (4, 33, 1), (33, 4), (132,)]:
        with pytest.raises(lodestore.ShapeError, match=r"\(4, 33\)"):
            graph.gather("feat", ids, out=np.zeros(shape, np.float32))
    with pytest.raises(lodestore.ShapeError, match=r"\(4,\)"):
        graph.gather("label", ids, out=np.zeros((4, 1), np.int64))
    for dtype in [np.float64, np.int32, ">f4"]:
        with pytest.raises(lodestore.DtypeError):
            graph.gather("feat", ids, out=np.zeros((4, 33), dtype))
    with pytest.raises(lodestore.ShapeError, match="contiguous"):
        graph.gather("feat", ids, out=np.zeros((33, 4), np.float32).T)
    with pytest.raises(lodestore.ShapeError, match="contiguous"):
        graph.gather("feat", ids, out=np.zeros((4, 66), np.float32)[:, ::2])
    fixed = np.zeros((4, 33), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(lodestore.ShapeError, match="read-only"):
        graph.gather("feat", ids, out=fixed)
    with pytest.raises(lodestore.DtypeError, match="numpy"):
        graph.gather("feat", ids, out=[[0.0] * 33] * 4)  # type: ignore[arg-type]


def test_many_tensors(sample: Sample, graph: lodestore.Graph) -> None:
    ids = [9, 8, 7]
    out = {"label": np.empty(3, np.int64)}
    found = graph.gather_many(["feat", "label"], ids, out=out)
    assert list(found) == ["feat", "label"] and found["label"] is out["label"]
    for name, rows in found.items():
        assert np.array_equal(rows, sample.rows[name][ids])
    with pytest.raises(lodestore.UnknownTensorError):
        graph.gather_many(["feat", "no"], ids)


def test_threads_gather_concurrently(sample: Sample, graph: lodestore.Graph) -> None:
    wrong = []

    def gather(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            ids = rng.integers(0, N_NODES, 2000)
            if not np.array_equal(graph.gather("feat", ids), sample.rows["feat"][ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_kept_alive(sample: Sample) -> None:
    graph = lodestore.open(sample.path)
    seen = weakref.ref(graph)
    ids, out = np.arange(100), np.empty((100, 33), np.float32)
    before = (sys.getrefcount(ids), sys.getrefcount(out))
    for _ in range(50):
        graph.gather("feat", ids, out=out)
        with pytest.raises(lodestore.ShapeError):
            graph.gather("feat", ids[1:], out=out)
        graph.submit("feat", ids, out=out).result()
    assert (sys.getrefcount(ids), sys.getrefcount(out)) == before
    tensor = graph["feat"]
    del graph
    gc.collect()
    assert seen() is not None, "a tensor has its graph"
    del tensor
    gc.collect()
    assert seen() is None
