"""Promises of PyG's tests of stores and custom loaders, over a graph with all of its features.

PyG's own files are in `third_party/pytorch_geometric`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conftest import N_NODES, Sample

import lodestore

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, TensorAttr  # noqa: E402
from torch_geometric.data.feature_store import AttrView, _FieldStatus  # noqa: E402
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout  # noqa: E402
from torch_geometric.utils import k_hop_subgraph  # noqa: E402
from torch_sparse_ops import neighbor_sample  # noqa: E402

import lodestore.pyg as lpyg  # noqa: E402

ATTRS = {"x": "feat", "y": "label"}


@dataclass
class AttrWithoutGroup(TensorAttr):  # type: ignore[misc]
    """An attribute whose group is always None."""

    def __init__(
        self, attr_name: Any = _FieldStatus.UNSET, index: Any = _FieldStatus.UNSET
    ) -> None:
        super().__init__(None, attr_name, index)


@pytest.fixture
def store(copied: Sample) -> Iterator[lpyg.FeatureStore]:
    with lodestore.open(copied.path, writable=True) as graph:
        yield lpyg.FeatureStore(graph, ATTRS)


@pytest.fixture
def data(sample: Sample) -> Data:
    edge_index = torch.tensor(sorted(sample.edges)).T.contiguous()
    x, y = torch.from_numpy(sample.rows["feat"]), torch.from_numpy(sample.rows["label"])
    return Data(x=x, y=y, edge_index=edge_index)


def test_a_feature_store_is_indexed_and_viewed(store: lpyg.FeatureStore, data: Data) -> None:
    index = torch.tensor([0, 2, 5])
    attr = TensorAttr(None, "x", index)
    assert torch.equal(store.get_tensor(attr), data.x[index])
    assert torch.equal(store[None, "x", index], data.x[index])
    assert torch.equal(store[None, "x", None], data.x)
    assert torch.equal(store[None, "x", :], data.x)
    assert torch.equal(store[None, "x", 3:9:2], data.x[3:9:2])
    view = store.view(group_name=None)
    assert view == AttrView(store, TensorAttr(None))
    assert "FeatureStore" in str(view)
    view.attr_name = "y"
    view["index"] = index
    assert view == AttrView(store, TensorAttr(None, "y", index))
    assert torch.equal(store.view(group_name=None).x[:], data.x)
    assert torch.equal(store.view(group_name=None, attr_name="y")[index], data.y[index])
    assert [found.shape for found in store.multi_get_tensor([attr, TensorAttr(None, "y", index)])]
    with pytest.raises(KeyError):
        store[None, "z", :]
    with pytest.raises(AttributeError):
        _ = store.view(group_name=None, attr_name="x", index=None).more


def test_a_feature_store_puts_and_updates(store: lpyg.FeatureStore, data: Data) -> None:
    index = torch.tensor([4, 1])
    assert store.put_tensor(data.x[:2] + 1, group_name=None, attr_name="x", index=index)
    store.graph.commit()
    assert torch.equal(store[None, "x", index], data.x[:2] + 1)
    assert store.update_tensor(data.x[:2] + 2, group_name=None, attr_name="x", index=index)
    store.graph.commit()
    assert torch.equal(store[None, "x", index], data.x[:2] + 2)
    store[None, "y", index] = torch.tensor([8, 9])
    store.graph.commit()
    assert store[None, "y", index].tolist() == [8, 9]
    new = torch.arange(2.0 * N_NODES, dtype=torch.float16).view(N_NODES, 2)
    assert store.put_tensor(new, group_name=None, attr_name="z", index=None)
    assert torch.equal(store[None, "z", :], new)
    assert torch.equal(store.view(group_name=None).z[:], new)
    assert store.get_tensor_size(group_name=None, attr_name="z") == (N_NODES, 2)
    assert [attr.attr_name for attr in store.get_all_tensor_attrs()] == ["x", "y", "z"]
    with pytest.raises(KeyError, match="x, y, z"):
        store[None, "w", index] = new[:2]
    with pytest.raises(lodestore.ShapeError):
        store[None, "w", None] = new[None]
    # Tensors of a graph are not removed by way of PyG.
    assert not store.remove_tensor(group_name=None, attr_name="x", index=None)
    assert torch.equal(store[None, "x", index], data.x[:2] + 2)


def test_a_feature_store_without_groups(store: lpyg.FeatureStore, data: Data) -> None:
    store._tensor_attr_cls = AttrWithoutGroup
    index = torch.tensor([7, 7])
    assert isinstance(store["x"], AttrView)
    assert torch.equal(store["x", index], data.x[index])
    assert torch.equal(store["x"][index], data.x[index])
    assert torch.equal(store["y"][:], data.y)
    assert torch.equal(store["y", :], data.y)


def pairs(source: Any, destination: Any) -> set[tuple[int, int]]:
    return set(zip(source.tolist(), destination.tolist(), strict=True))


def test_a_graph_store_converts(sample: Sample, graph: lodestore.Graph) -> None:
    store = lpyg.GraphStore(graph)
    assert str(store) == "GraphStore()"
    attr = EdgeAttr(None, EdgeLayout.CSC, True, size=(N_NODES, N_NODES))
    assert store.get_all_edge_attrs() == [attr]
    row, colptr, permutation = store.csc()
    assert permutation is None
    found_row, found_colptr = store[attr]
    assert torch.equal(found_row, row) and torch.equal(found_colptr, colptr)
    destination = torch.arange(N_NODES).repeat_interleave(colptr.diff())
    assert pairs(row, destination) == sample.edges
    source, destination, _ = store.coo()
    assert pairs(source, destination) == sample.edges
    rowptr, column, _ = store.csr()
    source = torch.arange(N_NODES).repeat_interleave(rowptr.diff())
    assert pairs(source, column) == sample.edges
    for absent in [
        EdgeAttr(None, EdgeLayout.COO, True, size=(N_NODES, N_NODES)),
        EdgeAttr(("a", "to", "b"), EdgeLayout.CSC, True, size=(N_NODES, N_NODES)),
    ]:
        with pytest.raises(KeyError):
            store[absent]
    with pytest.raises(NotImplementedError):
        store[attr] = (row, colptr)
    assert not store.remove_edge_index(attr)


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_neighbourhoods_are_those_of_data(
    graph: lodestore.Graph, data: Data, workers: int
) -> None:
    train = torch.from_numpy(graph.split("train"))
    loader = lpyg.NeighborLoader(graph, [-1, -1], train, batch_size=100, num_workers=workers)
    assert len(loader) == -(-len(train) // 100)
    seeds = []
    for batch in loader:
        assert torch.equal(batch.input_id, torch.arange(len(seeds), len(seeds) + batch.batch_size))
        roots = batch.n_id[: batch.batch_size]
        nodes, edge_index, _, _ = k_hop_subgraph(
            roots, 2, data.edge_index, num_nodes=N_NODES, directed=True
        )
        assert torch.equal(batch.n_id.sort().values, nodes)
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        source, destination = batch.n_id[batch.edge_index]
        assert pairs(source, destination) == pairs(*edge_index)
        seeds += roots.tolist()
    assert seeds == train.tolist()


@pytest.fixture
def torch_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the operator of torch-sparse that PyG's own sampler calls by one in Python."""
    operators = torch.ops.torch_sparse
    monkeypatch.setattr(operators, "neighbor_sample", neighbor_sample, raising=False)
    monkeypatch.setattr(pyg.typing, "WITH_TORCH_SPARSE", True)
    monkeypatch.setattr(pyg.typing, "WITH_PYG_LIB", False)


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")
def test_the_stock_loader_takes_our_stores(
    torch_sparse: None, graph: lodestore.Graph, data: Data
) -> None:
    from torch_geometric.loader import NeighborLoader

    settings: dict[str, Any] = {
        "num_neighbors": [-1, -1],
        "input_nodes": torch.arange(0, N_NODES, 7),
        "batch_size": 50,
    }
    ours = NeighborLoader((lpyg.FeatureStore(graph, ATTRS), lpyg.GraphStore(graph)), **settings)
    theirs = NeighborLoader(data, **settings)
    assert str(ours) == str(theirs) and len(ours) == len(theirs)
    own_loader = lpyg.NeighborLoader(
        graph, [-1, -1], settings["input_nodes"], batch_size=50, attrs=ATTRS
    )
    for batch, other, own in zip(ours, theirs, own_loader, strict=True):
        assert batch.num_nodes == other.num_nodes == own.num_nodes
        assert batch.num_edges == other.num_edges == own.num_edges
        assert batch.batch_size == other.batch_size == own.batch_size
        for name in ["x", "y"]:
            expected = data[name][batch.n_id]
            assert torch.equal(batch[name], expected)
            assert torch.equal(batch[name].sort(0).values, other[name].sort(0).values)
            assert torch.equal(batch[name].sort(0).values, own[name].sort(0).values)
        assert np.array_equal(np.sort(batch.n_id), np.sort(own.n_id))
