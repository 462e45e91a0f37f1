"""Times gathers beside numpy and torch, the sampler, and the import of the package.

Costs of a call, and rows of a graph whose pages are cached.

    python gather.py LODE FOLDER [--small]

LODE is the binary, FOLDER takes the graph (about 600 MB; with --small 2 MB, which only checks).
Every result is compared with numpy's before it is timed. Torch is timed where it is installed.
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
        startup(rounds)
        overhead(graph, rounds)
        sampling(graph, rounds)
        torch_gathers(graph, rows, rounds, small)
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


def startup(rounds: int) -> None:
    """Prints what `import lodestore` costs over that of numpy, each in a process of its own."""

    def run(code: str) -> None:
        # Not from this folder's parent, which has the sources.
        subprocess.run([sys.executable, "-c", code], check=True, cwd="/")

    numpy, both = (
        best(lambda: run(code), rounds, 1) for code in ["import numpy", "import numpy, lodestore"]
    )
    print(f"import lodestore: {(both - numpy) * 1e3:.1f} ms over numpy\n")


def sampling(graph: lodestore.Graph, rounds: int) -> None:
    """Prints edges per second of the sampler, through Python and of Rust alone."""
    print("\n| sampler | edges/s | Rust's | ratio |\n|---|---|---|---|")
    for fanout in [[10, 5], [15, 10, 5]]:
        sampler = graph.sampler(fanout)
        ids = np.random.default_rng(4).permutation(graph.nodes)[:1024]
        n_edges = len(sampler.sample(ids, 7)[3])
        call = best(lambda: sampler.sample(ids, 7), rounds, 20)
        rust = min(sampler._rust_sample_ns(ids, 7, 20) for _ in range(rounds)) / 1e9
        print(f"| {fanout} | {n_edges / call:,.0f} | {n_edges / rust:,.0f} | {rust / call:.2f} |")


def torch_gathers(graph: lodestore.Graph, rows: np.ndarray, rounds: int, small: bool) -> None:
    """Prints gathers of torch's tensors beside `index_select(out=)`, with one thread of torch."""
    try:
        import torch

        import lodestore.torch as ltorch
    except ImportError:
        print("\ntorch is not installed")
        return
    torch.set_num_threads(1)
    print("\n| rows | index_select(out=) | lodestore.torch.gather(out=) | ratio | call |")
    print("|---|---|---|---|---|")
    source = torch.from_numpy(rows)
    for n in [1, 100, 1_000, 10_000, 100_000]:
        ids = torch.from_numpy(np.random.default_rng(2).integers(0, graph.nodes, n))
        out, other = (torch.empty(n, rows.shape[1]) for _ in range(2))
        assert torch.equal(ltorch.gather(graph, "feat", ids, out=out), source[ids])
        repeats = max(1, (20_000 if small else 200_000) // (n + 20))
        selected = best(lambda: torch.index_select(source, 0, ids, out=other), rounds, repeats)
        ours = best(lambda: ltorch.gather(graph, "feat", ids, out=out), rounds, repeats)
        print(
            f"| {n:,} | {n / selected / 1e6:.2f} M rows/s | {n / ours / 1e6:.2f} M rows/s "
            f"| {selected / ours:.2f} | {ours * 1e6:.2f} µs |"
        )


if __name__ == "__main__":
    main()
