"""Historical embeddings as in GNNAutoScale (Fey et al. 2021, arXiv 2106.05609).

Batch after batch the outputs of the first layer are published to a history. The second layer takes
those of its neighbours from there, which are one epoch old where their batch comes later. Weights
change up to epoch 2; from epoch 3 on the outputs are those of the whole graph.

python history.py GRAPH
"""

from __future__ import annotations

import sys

import numpy as np

import lodestore

HIDDEN = 16
LAST_CHANGE = 2


class Model:
    """Two layers, each the mean over in-neighbours, then weights."""

    def __init__(self, n_features: int, epoch: int) -> None:
        rng = np.random.default_rng(min(epoch, LAST_CHANGE))
        self.first = rng.standard_normal((n_features, HIDDEN)).astype(np.float32)
        self.second = rng.standard_normal((HIDDEN, 1)).astype(np.float32)

    def hidden(self, means: np.ndarray) -> np.ndarray:
        return np.maximum(means @ self.first, 0)

    def output(self, means: np.ndarray) -> np.ndarray:
        return means @ self.second


def means_of(rows: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Returns the mean of the rows of each node, of which it has as many as its degree."""
    sums = np.zeros((len(degrees), rows.shape[1]), np.float32)
    np.add.at(sums, np.repeat(np.arange(len(degrees)), degrees), rows)
    return sums / np.maximum(degrees, 1).astype(np.float32)[:, None]


def whole_graph(graph: lodestore.Graph, model: Model) -> np.ndarray:
    colptr, row = graph.csc()
    hidden = model.hidden(means_of(graph["feat"][row], np.diff(colptr)))
    return model.output(means_of(hidden[row], np.diff(colptr)))


def main(path: str) -> None:
    with lodestore.open(path) as graph:
        colptr, row = graph.csc()
        volatile = graph.volatile(memory=256 << 20)
        volatile.declare("h1", "float32", HIDDEN)
        with volatile.publisher() as publisher:
            publisher.claim("h1", graph.parts)
            for epoch in range(1, 5):
                model = Model(graph["feat"].width, epoch)
                exact = whole_graph(graph, model)
                n_lacking, error = 0, 0.0
                for part in graph.parts:
                    degrees = np.diff(colptr[part.start : part.stop + 1])
                    sources = row[colptr[part.start] : colptr[part.stop]]
                    hidden = model.hidden(means_of(graph["feat"][sources], degrees))
                    publisher.publish("h1", np.arange(part.start, part.stop), hidden, epoch)
                    history, stamps = volatile.pull("h1", sources, epoch - 1)
                    n_lacking += int((stamps == -1).sum())
                    output = model.output(means_of(history, degrees))
                    difference = np.abs(output - exact[part.start : part.stop])
                    error = max(error, float(difference.max()))
                print(f"epoch {epoch}: {n_lacking} rows lacking, largest error {error:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
