"""Rows of a graph as numpy arrays: gather, wait for rows in the background, put and commit.

python numpy_rows.py GRAPH
"""

from __future__ import annotations

import sys

import numpy as np

import lodestore


def main(path: str) -> None:
    with lodestore.open(path) as graph:
        print(graph)
        train = graph.split("train")
        rows = graph["feat"][train[:4]]
        print("rows:", rows.shape, rows.dtype)
        futures = [graph.submit("feat", part) for part in np.array_split(train, 8)]
        mean = np.mean([future.result().mean(axis=0) for future in futures], axis=0)
        print("mean of the training rows:", mean[:3])
        colptr, row = graph.csc()
        print("in-degree of node 0:", colptr[1] - colptr[0], "first sources:", row[: colptr[1]][:3])
    with lodestore.open(path, writable=True) as graph:
        before = graph.version
        graph.put("feat", train[:4], rows * 0)
        print("version", before, "became", graph.commit())
        assert not graph["feat"][train[:4]].any()
        assert np.array_equal(graph.at(before)["feat"][train[:4]], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
