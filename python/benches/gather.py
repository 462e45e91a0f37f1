"""Times gathers beside numpy: the cost of a call, and rows of a graph whose pages are cached.

    python gather.py LODE FOLDER [--small]

LODE is the binary, FOLDER takes the graph (about 600 MB; with --small 2 MB, which only checks).
Every result is compared with numpy's before it is timed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import lodestore


def best(call: Callable[[], object], rounds: int, repeats: int) -> float:
    """Returns the seconds of a call: the least of the means of `rounds` of `repeats` calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats)
    return min(times)


def make(lode: str, folder: Path, n_nodes: int, width: int) -> tuple[Path, np.ndarray]:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((n_nodes, width), dtype=np.float32)
    graph = folder / f"bench-{n_nodes}-{width}"
    if not graph.exists():
        edges = rng.integers(0, n_nodes, (n_nodes, 2), dtype=np.uint32)
        np.save(folder / "edges.npy", edges)
        np.save(folder / "feat.npy", rows)
        np.save(folder / "label.npy", np.arange(n_nodes))
        command = [lode, "import", "--edges", str(folder / "edges.npy"), "--partitioner", "range"]
        for name in ["feat", "label"]:
            command += ["--tensor", f"{name}={folder / name}.npy"]
        subprocess.run([*command, "--order", "input", "--out", str(graph)], check=True)
    return graph, rows


def main() -> None:
    lode, folder, *flags = sys.argv[1:]
    small = "--small" in flags
    n_nodes, width = (4_000, 128) if small else (1_000_000, 128)
    path, rows = make(lode, Path(folder), n_nodes, width)
    rounds = 2 if small else 7
    with lodestore.open(path, reader="mapped") as graph:
        rows = rows[graph.external(np.arange(n_nodes))]
        graph["feat"][:]
        overhead(graph, rounds)
        rng = np.random.default_rng(2)
        print(
            f"\n| rows of {width * 4} B | np.take(out=) | gather(out=) | ratio | gather | np.take |"
        )
        print("|---|---|---|---|---|---|")
        for n in [1, 10, 100, 1_000, 10_000, 100_000]:
            ids = rng.integers(0, n_nodes, n)
            out, other = (np.empty((n, width), np.float32) for _ in range(2))
            assert np.array_equal(graph.gather("feat", ids, out=out), rows[ids])
            repeats = max(1, (20_000 if small else 200_000) // (n + 20))
            into = [
                best(lambda: np.take(rows, ids, axis=0, out=other, mode="clip"), rounds, repeats),
                best(lambda: graph.gather("feat", ids, out=out), rounds, repeats),
                best(lambda: graph.gather("feat", ids), rounds, repeats),
                best(lambda: np.take(rows, ids, axis=0), rounds, repeats),
            ]
            taken, ours, fresh, fresh_numpy = (n / seconds / 1e6 for seconds in into)
            print(
                f"| {n:,} | {taken:.2f} M rows/s | {ours:.2f} M rows/s | {ours / taken:.2f} "
                f"| {fresh:.2f} | {fresh_numpy:.2f} |"
            )


def overhead(graph: lodestore.Graph, rounds: int) -> None:
    """Prints what a call costs beside Rust's gather, which `_rust_gather_ns` times in a loop."""
    print("| ids | call | Rust's gather of the same ids | overhead |")
    print("|---|---|---|---|")
    for n in [0, 1, 100, 1_000, 10_000]:
        ids = np.random.default_rng(3).integers(0, graph.nodes, n)
        out = np.empty(n, np.int64)
        repeats = max(1, 200_000 // (n + 20))
        call = best(lambda: graph.gather("label", ids, out=out), rounds, repeats) * 1e9
        rust = min(graph._rust_gather_ns("label", ids, repeats) for _ in range(rounds))
        print(f"| {n:,} | {call:,.0f} ns | {rust:,.0f} ns | {call - rust:,.0f} ns |")


if __name__ == "__main__":
    main()
