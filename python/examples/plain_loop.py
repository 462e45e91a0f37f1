"""Batches of a schedule without any framework: the loss of a linear model by gradient descent.

python plain_loop.py GRAPH SCHEDULE
"""

from __future__ import annotations

import sys

import numpy as np

import lodestore


def main(path: str, schedule_path: str) -> None:
    with lodestore.open(path) as graph:
        schedule = graph.schedule(
            schedule_path, roots="train", fanout=[5, 5], batch=128, epochs=2, seed=1
        )
        n_classes = int(graph["label"][:].max()) + 1
        weights = np.zeros((graph["feat"].width, n_classes), np.float32)
        batches = graph.iterate(schedule, ["feat", "label"])
        for batch in batches:
            x, y = batch["feat"][: batch.n_roots], batch["label"][: batch.n_roots]
            scores = x @ weights
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
            loss = -np.log(scores[np.arange(len(y)), y] + 1e-9).mean()
            scores[np.arange(len(y)), y] -= 1
            weights -= 0.1 * x.T @ scores / len(y)
            if batch.index == 0:
                print(f"epoch {batch.epoch}: loss {loss:.3f}, {len(batch.nodes)} nodes")
        print(batches.stats())


if __name__ == "__main__":
    main(*sys.argv[1:])
