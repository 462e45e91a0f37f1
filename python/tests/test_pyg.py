"""PyG's loaders over lodestore; only where torch and torch_geometric are installed."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import N_NODES, Sample

import lodestore

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import lodestore.pyg as lpyg  # noqa: E402


def loader_of(graph: lodestore.Graph, fanout: list[int], **more: Any) -> lpyg.NeighborLoader:
    arguments: dict[str, Any] = {"batch_size": 64, "seed": 3, **more}
    return lpyg.NeighborLoader(graph, fanout, graph.split("train"), **arguments)


def in_neighbours(sample: Sample) -> dict[int, set[int]]:
    lists: dict[int, set[int]] = {}
    for source, destination in sample.edges:
        lists.setdefault(destination, set()).add(source)
    return lists


@pytest.mark.parametrize("fanout", [[-1, -1], [3, 2], [4]])
def test_batches_are_the_neighbourhoods(
    sample: Sample, graph: lodestore.Graph, fanout: list[int]
) -> None:
    lists, (colptr, row) = in_neighbours(sample), graph.csc()
    loader = loader_of(graph, fanout)
    seeds = []
    for batch in loader:
        ids = batch.n_id.numpy()
        assert len(set(ids.tolist())) == len(ids) == batch.num_nodes
        assert np.array_equal(batch.x.numpy(), sample.rows["feat"][ids])
        assert np.array_equal(batch.y.numpy(), sample.rows["label"][ids])
        seeds += ids[: batch.batch_size].tolist()
        source, destination = (ids[of] for of in batch.edge_index.numpy())
        drawn = list(zip(source.tolist(), destination.tolist(), strict=True))
        assert set(drawn) <= sample.edges and len(set(drawn)) == len(drawn)
        assert np.array_equal(row[batch.e_id.numpy()], source)
        owners = np.searchsorted(colptr, batch.e_id.numpy(), side="right") - 1
        assert np.array_equal(owners, destination)
        frontier, known = (
            set(ids[: batch.batch_size].tolist()),
            set(ids[: batch.batch_size].tolist()),
        )
        counts = dict(zip(*np.unique(destination, return_counts=True), strict=True))
        at = batch.num_sampled_nodes[0]
        for hop, number in enumerate(fanout):
            for node in frontier:
                degree = len(lists.get(node, ()))
                expected = degree if number < 0 else min(number, degree)
                assert counts.get(node, 0) == expected
            met = set(ids[at : at + batch.num_sampled_nodes[hop + 1]].tolist())
            if number < 0:
                all_met = set().union(*(lists.get(node, set()) for node in frontier)) - known
                assert met == all_met
            at += batch.num_sampled_nodes[hop + 1]
            frontier, known = met, known | met
        assert at == len(ids) and sum(batch.num_sampled_edges) == len(drawn)
    assert sorted(seeds) == np.flatnonzero(sample.splits == 0).tolist()
    assert loader.stats()["batches"] == len(loader)


def flat(batch: Any) -> list[bytes]:
    return [batch[key].numpy().tobytes() for key in ["n_id", "edge_index", "e_id", "x", "y"]]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_batches_are_equal_for_any_number_of_workers(graph: lodestore.Graph, method: str) -> None:
    expected = [flat(batch) for batch in loader_of(graph, [3, 2])]
    again = [flat(batch) for batch in loader_of(graph, [3, 2], seed=4)]
    assert expected != again
    for workers in [1, 3] if method == "fork" else [2]:
        more: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method}
        assert [flat(batch) for batch in loader_of(graph, [3, 2], **more)] == expected


def test_epochs_differ_and_reach_workers_that_persist(graph: lodestore.Graph) -> None:
    plain = loader_of(graph, [3, 2])
    epochs = [[flat(batch) for batch in plain] for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    lasting = loader_of(graph, [3, 2], num_workers=2, persistent_workers=True)
    assert [[flat(batch) for batch in lasting] for _ in range(3)] == epochs
    # Otherwise the garbage collector ends the workers. Torch then waits 10 s in another test, and
    # an interrupt is lost in its finalizer.
    lasting._iterator = None


def test_rows_that_come_again_stay_in_memory(sample: Sample, graph: lodestore.Graph) -> None:
    expected = [flat(batch) for batch in loader_of(graph, [3, 2])]
    for together, memory in [(1, 1 << 24), (8, 1 << 24), (3, 100_000)]:
        loader = loader_of(graph, [3, 2], together=together, memory=memory)
        assert [flat(batch) for batch in loader] == expected
        first = loader.stats()
        assert first["hit_rows"] > 0 and first["read_rows"] > 0
        if memory > 1 << 20:
            for _ in range(3):
                for batch in loader:
                    assert np.array_equal(batch.x.numpy(), sample.rows["feat"][batch.n_id])
            assert loader.stats()["read_rows"] < 3 * 2 * N_NODES, "most rows are read once"
    workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn"}
    with_workers = loader_of(graph, [3, 2], memory=1 << 24, **workers)
    assert [flat(batch) for batch in with_workers] == expected
    with pytest.raises(ValueError, match="together"):
        loader_of(graph, [3, 2], together=0)


def rows_are(loader: lpyg.NeighborLoader, rows: np.ndarray, between: Any = None) -> None:
    """Goes through an epoch, and calls `between` after its first batch."""
    for number, batch in enumerate(loader):
        assert np.array_equal(batch.x.numpy(), rows[batch.n_id])
        if number == 0 and between is not None:
            between()


@pytest.mark.parametrize("memory", [None, 1 << 24])
def test_an_epoch_is_of_one_version(copied: Sample, memory: int | None) -> None:
    new = np.ones((N_NODES, 33), np.float32)
    with lodestore.open(copied.path, writable=True) as graph:
        loader = loader_of(graph, [3, 2], memory=memory, window=2)

        def commit() -> None:
            graph.put("feat", np.arange(N_NODES), new)
            graph.commit()

        rows_are(loader, copied.rows["feat"], commit)
        assert loader.version == 1
        rows_are(loader, new)
        assert loader.version == 2 and loader.version_id == graph.version_id


@pytest.mark.parametrize("pin", [True, False])
def test_an_epoch_over_servers_is_of_one_version(copied: Sample, serve: Any, pin: bool) -> None:
    _, address = serve(copied.path, "--writable")
    old, new = copied.rows["feat"], np.ones((N_NODES, 33), np.float32)
    with (
        lodestore.connect(address) as writer,
        lodestore.connect(address, topology=copied.path, pin=pin) as graph,
    ):
        loader = loader_of(graph, [3, 2], memory=1 << 24, window=2)

        def commit() -> None:
            writer.put("feat", np.arange(N_NODES), new)
            writer.commit()

        rows_are(loader, old, commit)
        assert loader.version == 1 and loader.stats()["hit_rows"] > 0
        rows_are(loader, old if pin else new)
        assert loader.version == (1 if pin else 2)


def test_a_broken_off_epoch_leaves_nothing_to_the_next(graph: lodestore.Graph) -> None:
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    fresh = loader_of(graph, [3, 2])
    expected = [[flat(batch) for batch in fresh] for _ in range(2)][1]
    loader = loader_of(graph, [3, 2], **workers)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    assert [flat(batch) for batch in loader] == expected
    loader._iterator = None


def test_no_more_batches_are_in_flight_than_the_window(graph: lodestore.Graph) -> None:
    loader = loader_of(graph, [3, 2], window=3)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
        # The batch that was returned has left the window.
        assert len(batches.in_flight) <= 2


def test_the_window_shrinks_to_its_bytes(graph: lodestore.Graph) -> None:
    expected = [flat(batch) for batch in loader_of(graph, [3, 2])]
    loader = loader_of(graph, [3, 2], max_bytes=1 << 18)
    batches = iter(loader)
    found = []
    for batch in batches:
        found.append(flat(batch))
        in_flight = [each.n_bytes for each in batches.in_flight if each.futures]
        assert len(in_flight) <= 1 or sum(in_flight) <= 1 << 17
    assert found == expected
    assert 0 < loader.stats()["peak_bytes"] <= 1 << 18
    # A batch is loaded whatever its size.
    assert [flat(batch) for batch in loader_of(graph, [3, 2], max_bytes=1)] == expected
    with pytest.raises(ValueError, match="leaves nothing beside memory"):
        loader_of(graph, [3, 2], memory=1 << 20, max_bytes=1 << 20)


def test_persistent_workers_change_no_order(graph: lodestore.Graph) -> None:
    more: dict[str, Any] = {"batch_size": 16, "shuffle": True}
    persistent = {**more, "num_workers": 1, "persistent_workers": True}
    fresh = loader_of(graph, [3, 2], **more)
    epochs = [[flat(batch) for batch in fresh] for _ in range(3)]
    loader = loader_of(graph, [3, 2], **persistent)
    assert [[flat(batch) for batch in loader] for _ in range(3)] == epochs
    loader.set_epoch(2)
    assert [flat(batch) for batch in loader] == epochs[1]
    loader.load_state_dict({"seed": 3, "epoch": 1, "batches": 2})
    assert [flat(batch) for batch in loader] == epochs[0][2:]


def test_a_dropped_loader_is_freed_without_the_collector(graph: lodestore.Graph) -> None:
    loader = loader_of(graph, [3, 2], num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    workers = weakref.ref(batches.sampled)
    gc.disable()
    try:
        # PyG's own loader refers to itself.
        del batches, loader.__dict__["collate_fn"], loader
        assert workers() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_iterators_of_one_loader_do_not_disturb_each_other(
    graph: lodestore.Graph, workers: int, shuffle: bool
) -> None:
    more: dict[str, Any] = {"batch_size": 64, "shuffle": shuffle, "num_workers": workers}
    fresh = loader_of(graph, [3, 2], **more)
    epochs = [[flat(batch) for batch in fresh] for _ in range(2)]
    loader = loader_of(graph, [3, 2], **more)
    first, second = iter(loader), iter(loader)
    found = [(flat(one), flat(other)) for one, other in zip(first, second, strict=True)]
    assert found == list(zip(*epochs, strict=True))
    assert loader.state_dict() == {"seed": 3, "epoch": 2, "batches": len(epochs[1])}


def test_a_shuffled_loader_trains(graph: lodestore.Graph) -> None:
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(1)
    model = GraphSAGE(33, 16, 2, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        total = 0.0
        for batch in loader_of(graph, [5, 5], shuffle=True, batch_size=128):
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < losses[0]


def test_feature_store(sample: Sample, copied: Sample) -> None:
    with lodestore.open(copied.path, writable=True) as graph:
        store = lpyg.FeatureStore(graph, {"x": "feat", "b": "bf", "y": "label"})
        rows = sample.rows["feat"]
        for index in [torch.tensor([3, 1]), torch.tensor([3, 1], dtype=torch.int32), np.array([5])]:
            found = store.get_tensor(group_name=None, attr_name="x", index=index)
            assert np.array_equal(found.numpy(), rows[np.asarray(index)])
        whole = store.get_tensor(group_name=None, attr_name="x", index=None)
        assert np.array_equal(whole.numpy(), rows)
        cut = store.get_tensor(group_name=None, attr_name="x", index=slice(2, 9))
        assert np.array_equal(cut.numpy(), rows[2:9])
        bits = store.get_tensor(group_name=None, attr_name="b", index=torch.tensor([4]))
        assert bits.dtype == torch.bfloat16
        assert np.array_equal(
            bits.view(torch.int16).numpy().view(np.uint16), sample.rows["bf"][[4]]
        )
        with pytest.raises(KeyError, match="x, b, y"):
            store.get_tensor(group_name=None, attr_name="z", index=None)
        with pytest.raises(KeyError):
            store.get_tensor(group_name="paper", attr_name="x", index=None)
        assert store.get_tensor_size(group_name=None, attr_name="x") == (N_NODES, 33)
        attrs = store.get_all_tensor_attrs()
        attrs[0].index = torch.tensor([1])
        assert not store.get_all_tensor_attrs()[0].is_set("index"), "objects are fresh"
        new = torch.ones(2, 33)
        assert store.update_tensor(new, group_name=None, attr_name="x", index=torch.tensor([1, 2]))
        graph.commit()
        assert np.array_equal(graph["feat"][[1, 2]], new.numpy())
        assert not store.remove_tensor(group_name=None, attr_name="x", index=None)
    with lodestore.open(sample.path) as graph:
        copy = pickle.loads(pickle.dumps(lpyg.FeatureStore(graph)))
        assert copy.attrs == {"x": "feat", "y": "label"}
        found = copy.get_tensor(group_name=None, attr_name="y", index=torch.tensor([7]))
        assert found.item() == sample.rows["label"][7]


def test_graph_store(sample: Sample, graph: lodestore.Graph) -> None:
    store = lpyg.GraphStore(graph)
    attr = store.get_all_edge_attrs()[0]
    row, colptr = store.get_edge_index(attr)
    assert attr.size == (N_NODES, N_NODES) and len(row) == len(sample.edges)
    destination = torch.repeat_interleave(torch.arange(N_NODES), colptr.diff())
    assert set(zip(row.tolist(), destination.tolist(), strict=True)) == sample.edges
    narrow = lpyg.GraphStore(graph, torch.int32)
    for array, other in zip(narrow.get_edge_index(attr), (row, colptr), strict=True):
        assert array.dtype == torch.int32 and torch.equal(array, other.int())
    with pytest.raises(lodestore.DtypeError, match="int16"):
        lpyg.GraphStore(graph, torch.int16)


@pytest.mark.parametrize("fanout", [[-1, -1], [3, 2], [4]])
def test_a_seed_that_comes_again_has_its_output_again(
    graph: lodestore.Graph, fanout: list[int]
) -> None:
    seeds = torch.tensor([7, 3, 7, 9, 3, 7])
    batch = next(iter(lpyg.NeighborLoader(graph, fanout, seeds, batch_size=6)))
    assert batch.n_id[:6].tolist() == seeds.tolist()
    assert len(set(batch.n_id[6:].tolist()) & {3, 7, 9}) == 0
    sources = batch.n_id[batch.edge_index[0]]
    into = [
        sorted(zip(sources[at].tolist(), batch.e_id[at].tolist(), strict=True))
        for at in (batch.edge_index[1] == place for place in range(6))
    ]
    assert into[0] == into[2] == into[5] and into[1] == into[4]
    assert sum(batch.num_sampled_nodes) == batch.num_nodes
    assert sum(batch.num_sampled_edges) == batch.num_edges
    # Edges of each hop end at nodes of the hops before, which models that trim rely on.
    known, at = 0, 0
    for hop, n_edges in enumerate(batch.num_sampled_edges):
        known += batch.num_sampled_nodes[hop]
        assert (batch.edge_index[1][at : at + n_edges] < known).all()
        at += n_edges


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replace", True),
        ("disjoint", True),
        ("directed", False),
        ("subgraph_type", "induced"),
        ("temporal_strategy", "last"),
        ("time_attr", "time"),
        ("input_time", torch.zeros(3)),
        ("weight_attr", "weight"),
        ("neighbor_sampler", object()),
        ("filter_per_worker", True),
        ("input_nodes", "paper"),
        ("input_nodes", ("paper", [1])),
        ("num_neighbors", {("a", "to", "b"): [1]}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    graph: lodestore.Graph, name: str, value: Any
) -> None:
    arguments = {"num_neighbors": [2], "input_nodes": [1, 2], name: value}
    with pytest.raises(NotImplementedError, match=name):
        lpyg.NeighborLoader(graph, **arguments)


def test_arguments_that_ask_for_nothing_are_taken(graph: lodestore.Graph) -> None:
    idle: dict[str, Any] = {
        "replace": False,
        "disjoint": False,
        "directed": True,
        "subgraph_type": "directional",
        "temporal_strategy": "uniform",
        "time_attr": None,
        "input_time": None,
        "weight_attr": None,
        "is_sorted": True,
        "neighbor_sampler": None,
    }
    expected = [flat(batch) for batch in loader_of(graph, [3, 2])]
    assert [flat(batch) for batch in loader_of(graph, [3, 2], **idle)] == expected
    with pytest.raises(TypeError, match="colour"):
        loader_of(graph, [3], colour=1)


def test_seeds_are_ids_a_mask_or_all_nodes(sample: Sample, graph: lodestore.Graph) -> None:
    def seeds(nodes: Any) -> list[int]:
        loader = lpyg.NeighborLoader(graph, [1], nodes, batch_size=64)
        return [node for batch in loader for node in batch.n_id[: batch.batch_size].tolist()]

    assert seeds(None) == list(range(N_NODES))
    assert seeds([5, 1]) == seeds(np.array([5, 1], np.uint32)) == seeds((5, 1)) == [5, 1]
    mask = sample.splits == 0
    assert seeds(mask) == seeds(torch.from_numpy(mask)) == np.flatnonzero(mask).tolist()
    assert seeds([0]) == [0]
    assert seeds([]) == []
    with pytest.raises(ValueError, match="mask has one value"):
        seeds(mask[:-1])
    with pytest.raises(TypeError, match="integers or a mask"):
        seeds([0.5])
    assert seeds(np.array([5, 1], ">i8")) == [5, 1]
    with pytest.raises(TypeError, match="found set"):
        seeds({1, 2})
    for wrong, words in [([2.5], "whole numbers"), ([None], "whole numbers"), (["3"], "whole")]:
        with pytest.raises(ValueError, match=words):
            lpyg.NeighborLoader(graph, wrong, batch_size=4)
    with pytest.raises(NotImplementedError, match="batch_size=None"):
        lpyg.NeighborLoader(graph, [1], batch_size=None)
    for state in [{}, None]:
        with pytest.raises(ValueError, match="expected a state"):
            loader_of(graph, [1]).load_state_dict(state)


def test_the_seed_makes_the_order_and_a_loader_goes_on_where_it_was(
    graph: lodestore.Graph,
) -> None:
    more: dict[str, Any] = {"shuffle": True, "batch_size": 16}
    loader = loader_of(graph, [3, 2], **more)
    epochs = [[flat(batch) for batch in loader] for _ in range(2)]
    again = loader_of(graph, [3, 2], **more)
    assert [[flat(batch) for batch in again] for _ in range(2)] == epochs
    assert epochs[0] != epochs[1]
    assert [flat(batch) for batch in loader_of(graph, [3, 2], **more | {"seed": 4})] != epochs[0]
    again.set_epoch(1)
    assert [flat(batch) for batch in again] == epochs[0]
    for workers in [0, 2]:
        first = loader_of(graph, [3, 2], num_workers=workers, **more)
        batches = iter(first)
        next(batches), next(batches)
        state = pickle.loads(pickle.dumps(first.state_dict()))
        assert state == {"seed": 3, "epoch": 1, "batches": 2}
        second = loader_of(graph, [3, 2], num_workers=workers, **more)
        second.load_state_dict(state)
        assert [flat(batch) for batch in second] == epochs[0][2:]
        assert [flat(batch) for batch in second] == epochs[1]
    with pytest.raises(ValueError, match="seed 3"):
        loader_of(graph, [3], seed=4).load_state_dict(state)


def test_a_batch_whose_rows_cannot_be_had_comes_next(
    graph: lodestore.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [flat(batch) for batch in loader_of(graph, [3, 2], batch_size=16)]
    loader = loader_of(graph, [3, 2], batch_size=16)
    calls: list[int] = []

    class AwayFuture:
        def result(self) -> Any:
            raise ConnectionError("the server is away")

    class AwayQueue:
        """A queue whose server is away at times."""

        def __init__(self, queue: lodestore.Queue) -> None:
            self.queue, self.window_bytes = queue, queue.window_bytes

        def submit(self, name: str, ids: Any) -> Any:
            calls.append(1)
            return AwayFuture() if len(calls) in (1, 6, 9) else self.queue.submit(name, ids)

    monkeypatch.setattr(loader, "_queue", AwayQueue(loader._queue))
    batches, found, n_failed = iter(loader), [], 0
    while True:
        try:
            found.append(flat(next(batches)))
        except ConnectionError:
            n_failed += 1
        except StopIteration:
            break
    assert (found, n_failed) == (expected, 3)


def test_rows_have_the_type_of_their_tensor(sample: Sample, graph: lodestore.Graph) -> None:
    attrs = {"x": "bf", "y": "label", "half": "half"}
    batch = next(iter(loader_of(graph, [3, 2], attrs=attrs)))
    assert (batch.x.dtype, batch.half.dtype) == (torch.bfloat16, torch.float16)
    expected = torch.from_numpy(sample.rows["feat"][batch.n_id.numpy()]).bfloat16()
    assert torch.equal(batch.x, expected)


def whole(sample: Sample) -> Any:
    edge_index = torch.tensor(sorted(sample.edges)).T.contiguous()
    return torch.from_numpy(sample.rows["feat"]), edge_index


@pytest.mark.parametrize("jk", [None, "last"])
@pytest.mark.parametrize("kind", ["GraphSAGE", "GAT", "GIN"])
def test_inference_is_the_model_over_the_whole_graph(
    copied: Sample, kind: str, jk: str | None
) -> None:
    import torch_geometric.nn

    torch.manual_seed(2)
    x, edge_index = whole(copied)
    model = getattr(torch_geometric.nn, kind)(33, 8, 3, 5, norm="batch", dropout=0.5, jk=jk)
    expected = model.eval()(x, edge_index).detach()
    model.train()
    with lodestore.open(copied.path, writable=True) as graph:
        last = lpyg.inference(model, graph, batch_size=700)
        assert model.training, "it is as it was"
        assert last.name == "h3" and last.shape == (N_NODES, 5)
        assert graph["h1"].shape == (N_NODES, 8) and list(graph.tensors)[-3:] == ["h1", "h2", "h3"]
        np.testing.assert_allclose(last[:], expected.numpy(), rtol=1e-4, atol=1e-5)
        # Again, by other names and sizes of batches, from its own layer.
        again = lpyg.inference(model, graph, out="again{layer}", batch_size=4_000, window=1)
        np.testing.assert_allclose(again[:], last[:], rtol=1e-4, atol=1e-5)
    with lodestore.open(copied.path) as graph:
        assert graph["h3"].shape == (N_NODES, 5), "it stays"


class HalfModel(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two layers in bfloat16, the second of which fails at the third batch."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def inference_per_layer(self, layer: int, x: Any, edge_index: Any, batch_size: int) -> Any:
        self.calls += layer
        if self.calls == 3:
            raise ZeroDivisionError
        return x[:batch_size].to(torch.bfloat16) * 2


def test_an_inference_that_fails_leaves_whole_layers(copied: Sample) -> None:
    with lodestore.open(copied.path, writable=True) as graph:
        model = HalfModel()
        with pytest.raises(ZeroDivisionError):
            lpyg.inference(model, graph, batch_size=500)
        assert "h1" in graph and "h2" not in graph
        doubled = torch.from_numpy(copied.rows["feat"]).to(torch.bfloat16) * 2
        store = lpyg.FeatureStore(graph, {"h": "h1"})
        assert torch.equal(store[None, "h", :], doubled)
        with pytest.raises(lodestore.StoreError, match="has a tensor h1"):
            lpyg.inference(model, graph)
        assert model.calls == 3, "nothing was computed"
        with pytest.raises(ValueError, match="layer"):
            lpyg.inference(model, graph, out="same")
        with pytest.raises(KeyError):
            lpyg.inference(model, graph, tensor="none", out="i{layer}")
        model.jk_mode = "cat"  # type: ignore[assignment]
        with pytest.raises(ValueError, match="cat"):
            lpyg.inference(model, graph, out="i{layer}")
    with lodestore.open(copied.path) as graph, pytest.raises(lodestore.ReadOnlyError):
        lpyg.inference(HalfModel(), graph, out="i{layer}")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_goes_away_in_mid_epoch_ends_the_loader(
    sample: Sample, serve: Any, workers: int
) -> None:
    server, address = serve(sample.path)
    with lodestore.connect(address, deadline=2.0, topology=sample.path) as graph:
        loader = loader_of(graph, [3, 2], batch_size=8, window=2, num_workers=workers)
        batches = iter(loader)
        first = next(batches)
        assert np.array_equal(first.x.numpy(), sample.rows["feat"][first.n_id.numpy()])
        server.kill()
        with pytest.raises((lodestore.ServerError, lodestore.DeadlineError)):
            for _ in batches:
                pass
        del batches
    # The process reads other graphs on.
    with lodestore.open(sample.path) as graph:
        assert len(list(loader_of(graph, [3, 2], num_workers=workers))) == len(
            loader_of(graph, [1])
        )
