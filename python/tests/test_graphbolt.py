"""GraphBolt's features over lodestore: with dgl where it is installed, else with its interface."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import N_NODES, Sample, in_process

import lodestore

torch = pytest.importorskip("torch")


def interface() -> Any:
    """Returns the classes of dgl.graphbolt that the adapter uses, as far as it relies on them."""
    graphbolt: Any = types.ModuleType("dgl.graphbolt")

    class Feature:
        pass

    class TorchBasedFeature(Feature):
        def __init__(self, rows: Any) -> None:
            self.rows = rows

        def read(self, ids: Any = None) -> Any:
            return self.rows if ids is None else self.rows[ids]

    class BasicFeatureStore:
        def __init__(self, features: dict[Any, Any]) -> None:
            self.features = features

        def __getitem__(self, key: Any) -> Any:
            return self.features[key]

        def __contains__(self, key: Any) -> bool:
            return key in self.features

        def read(self, domain: Any, type_name: Any, name: Any, ids: Any = None) -> Any:
            return self.features[domain, type_name, name].read(ids)

    def fused_csc_sampling_graph(indptr: Any, indices: Any, edge_attributes: Any = None) -> Any:
        return types.SimpleNamespace(
            csc_indptr=indptr, indices=indices, edge_attributes=edge_attributes
        )

    graphbolt.Feature = Feature
    graphbolt.TorchBasedFeature = TorchBasedFeature
    graphbolt.BasicFeatureStore = BasicFeatureStore
    graphbolt.fused_csc_sampling_graph = fused_csc_sampling_graph
    graphbolt.ORIGINAL_EDGE_ID = "_ORIGINAL_EDGE_ID"
    return graphbolt


@pytest.fixture
def lgb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    try:
        import dgl.graphbolt
    except ImportError:
        graphbolt, dgl = interface(), types.ModuleType("dgl")
        dgl.graphbolt = graphbolt  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "dgl", dgl)
        monkeypatch.setitem(sys.modules, "dgl.graphbolt", graphbolt)
    import lodestore.graphbolt

    yield lodestore.graphbolt
    sys.modules.pop("lodestore.graphbolt", None)


def test_features_read_rows(lgb: Any, sample: Sample, graph: lodestore.Graph) -> None:
    feature = lgb.Feature(graph, "feat")
    rows = torch.from_numpy(sample.rows["feat"])
    ids = torch.tensor([5, 0, 5, N_NODES - 1])
    for given in [ids, ids.int()]:
        assert torch.equal(feature.read(given), rows[ids])
    assert torch.equal(feature.read(), rows)
    assert feature.size() == rows.shape[1:] and feature.count() == N_NODES
    assert feature.metadata() == {} and not feature.is_pinned()
    label = lgb.Feature(graph, "label")
    assert label.size() == torch.Size([1])
    assert torch.equal(label.read(ids), torch.from_numpy(sample.rows["label"])[ids][:, None])
    assert lgb.Feature(graph, "bf").read(ids).dtype == torch.bfloat16
    assert torch.equal(feature.read_into_memory().read(ids), rows[ids])
    with pytest.raises(lodestore.IdError):
        feature.read(torch.tensor([N_NODES]))
    with pytest.raises(lodestore.UnknownTensorError):
        lgb.Feature(graph, "no")
    assert "feat float32" in repr(feature)


def test_features_are_read_asynchronously(lgb: Any, sample: Sample, graph: lodestore.Graph) -> None:
    rows = torch.from_numpy(sample.rows["feat"])
    feature = lgb.Feature(graph, "feat")
    requests = [torch.arange(first, first + 50) for first in range(0, 500, 50)]
    stages = [feature.read_async(ids) for ids in requests]
    futures = [next(stage) for stage in stages]
    for ids, stage, future in zip(requests, stages, futures, strict=True):
        assert torch.equal(future.wait(), rows[ids]) and torch.equal(future.wait(), rows[ids])
        assert len(list(stage)) == feature.read_async_num_stages(ids.device) - 1
    label = next(lgb.Feature(graph, "label").read_async(torch.tensor([3]))).wait()
    assert label.shape == (1, 1) and label.item() == sample.rows["label"][3]


def test_features_are_updated(lgb: Any, copied: Sample) -> None:
    with lodestore.open(copied.path, writable=True) as graph:
        feature, label = lgb.Feature(graph, "feat"), lgb.Feature(graph, "label")
        ids = torch.tensor([3, 1])
        feature.update(torch.ones(2, 33), ids)
        label.update(torch.tensor([[8], [9]]), ids)
        graph.commit()
        assert feature.read(ids).eq(1).all() and label.read(ids).flatten().tolist() == [8, 9]
        feature.update(torch.zeros(N_NODES, 33))
        graph.commit()
        assert not feature.read().any()
        with pytest.raises(lodestore.ShapeError):
            feature.update(torch.ones(1, 33), ids)


def test_pinning_only_warns(lgb: Any, graph: lodestore.Graph) -> None:
    feature = lgb.Feature(graph, "feat")
    with pytest.warns(UserWarning, match="not pinned"):
        assert feature.pin_memory_() is feature
    with pytest.warns(UserWarning, match="not pinned"):
        assert feature.to("pinned") is feature
    with pytest.warns(UserWarning, match="device"):
        assert feature.to("cpu") is feature


def test_a_feature_store_has_all_tensors(lgb: Any, sample: Sample, graph: lodestore.Graph) -> None:
    store = lgb.feature_store(graph)
    ids = torch.tensor([4, 2])
    for name in graph.tensors:
        expected = lgb.Feature(graph, name).read(ids)
        assert torch.equal(store.read("node", None, name, ids), expected)
    found = store.read("node", None, "feat", ids)
    assert np.array_equal(found.numpy(), sample.rows["feat"][ids.numpy()])


def test_the_sampling_graph_has_the_edges(lgb: Any, sample: Sample, graph: lodestore.Graph) -> None:
    sampling = lgb.sampling_graph(graph)
    colptr, row = graph.csc()
    assert np.array_equal(sampling.csc_indptr.numpy(), colptr)
    assert np.array_equal(sampling.indices.numpy(), row)
    edge_ids = sampling.edge_attributes["_ORIGINAL_EDGE_ID"]
    assert torch.equal(edge_ids, torch.arange(len(row))) and len(row) == len(sample.edges)


FETCH = """
import sys
import dgl.graphbolt as gb, numpy as np, torch
import lodestore, lodestore.graphbolt as lgb

graph = lodestore.open(sys.argv[1])
workers, seeds = int(sys.argv[2]), torch.from_numpy(graph.split("train"))
store = lgb.feature_store(graph)
seen = []
items = gb.ItemSampler(gb.ItemSet(seeds, names="seed_nodes"), batch_size=64)
sampled = items.sample_neighbor(lgb.sampling_graph(graph), [3, 2])
fetched = sampled.fetch_feature(store, node_feature_keys=["feat", "label", "half"])
colptr, row = graph.csc()
for batch in gb.DataLoader(fetched, num_workers=workers):
    ids = batch.input_nodes
    assert len(ids.unique()) == len(ids)
    for name in ["feat", "label", "half"]:
        found = batch.node_features[name]
        assert np.array_equal(found.squeeze(1) if name == "label" else found, graph[name][ids])
    for subgraph in batch.sampled_subgraphs:
        edges = subgraph.original_edge_ids
        sources = subgraph.original_row_node_ids[subgraph.sampled_csc.indices]
        assert np.array_equal(row[edges], sources), "edge ids are positions in csc()"
    seen += batch.seed_nodes.tolist()
assert seen == seeds.tolist()
assert store.size("node", None, "feat") == torch.Size([33])
with torch.no_grad():
    cached = lgb.Feature(graph, "feat").read_into_memory()
    assert isinstance(cached, gb.Feature)
    assert torch.equal(cached.read(seeds), store.read("node", None, "feat", seeds))
print("batches", len(seen))
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_the_real_graphbolt(sample: Sample, workers: int) -> None:
    pytest.importorskip("dgl.graphbolt")
    done = in_process(FETCH, sample.path, workers)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"batches {(sample.splits == 0).sum()}\n"
