"""The sampler against the edges of the graph."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
from conftest import N_NODES, Sample

import lodestore


def test_samples_are_edges_of_the_graph(sample: Sample, graph: lodestore.Graph) -> None:
    colptr, source_of = graph.csc()
    sampler = graph.sampler([3, -1, 2])
    ids = np.array([5, 2000, 17])
    node, row, col, edge, nodes_of_hop, edges_of_hop = sampler.sample(ids, seed=11)
    assert np.array_equal(node[:3], ids) and nodes_of_hop[0] == 3
    assert sum(nodes_of_hop) == len(node) == len(set(node.tolist()))
    assert sum(edges_of_hop) == len(row) == len(col) == len(edge) == len(set(edge.tolist()))
    assert np.array_equal(source_of[edge], node[row])
    assert np.array_equal(np.searchsorted(colptr, edge, side="right") - 1, node[col])
    assert (np.diff(col) >= 0).all()
    copy = pickle.loads(pickle.dumps(sampler))
    for other in [sampler, copy]:
        again = other.sample(ids, seed=11)
        assert all(
            np.array_equal(a, b) for a, b in zip(again, (node, row, col, edge), strict=False)
        )
    assert not np.array_equal(sampler.sample(ids, seed=12)[3], edge)
    assert "[3, -1, 2]" in repr(sampler) and sampler.fanout == [3, -1, 2]
    with pytest.raises(lodestore.IdError):
        sampler.sample([N_NODES])
    with pytest.raises(ValueError, match="fan-out"):
        graph.sampler([0])


def test_threads_sample_alike(graph: lodestore.Graph) -> None:
    sampler = graph.sampler([4, 4])
    expected = [sampler.sample(np.arange(i, i + 50), seed=i)[3] for i in range(60)]
    wrong = []

    def run() -> None:
        for i in range(60):
            if not np.array_equal(sampler.sample(np.arange(i, i + 50), seed=i)[3], expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
