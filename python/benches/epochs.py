"""Common parts of the benches of epochs: a graph, its rows, cold starts, processes of epochs.

Each epoch has a process of its own, since pages that a process maps stay cached. "Cold" ones start
without cached pages, in a memory cgroup with room for a tenth of the rows, and 128 MB for batches
and the model. They need root and cgroup v1. Torch's threads of OpenMP sleep while they wait. By
default they spin: where another process has a core, an epoch then takes up to 20 times as long.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lodestore

CGROUPS = Path("/sys/fs/cgroup/memory")
FANOUT, BATCH, DEGREE, WIDTH = [10, 5], 256, 10, 128
# Memory for the batches and the model, beside what the process has before the epoch.
OWN_BYTES = 128 << 20
# Most seconds of a process.
MOST_SECONDS = 120


@dataclass
class Framework:
    """A framework's epochs over several sources of rows."""

    file: str
    """The script, which is started again for each epoch."""
    sources: list[str]
    batches: Callable[[str, lodestore.Graph, Path, Any], Iterator[tuple[Any, Any, int]]]
    """By source, graph, file of its rows and seeds: (rows, edge_index, n_seeds) of each batch."""
    model: Callable[[], Any]
    """A new model over (rows, edge_index)."""


def make(lode: str, folder: Path, n_nodes: int) -> Path:
    """Makes a graph of random edges and rows, and a file of its rows by node."""
    path = folder / f"epoch-{n_nodes}"
    rows = path.with_suffix(".npy")
    if rows.exists():
        return path
    rng = np.random.default_rng(1)
    np.save(folder / "edges.npy", rng.integers(0, n_nodes, (DEGREE * n_nodes, 2), dtype=np.uint32))
    np.save(folder / "feat.npy", rng.standard_normal((n_nodes, WIDTH), dtype=np.float32))
    command = [lode, "import", "--edges", str(folder / "edges.npy"), "--partitioner", "range"]
    command += ["--order", "input", "--tensor", f"feat={folder / 'feat.npy'}", "--out", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with lodestore.open(path) as graph:
        by_input = np.load(folder / "feat.npy", mmap_mode="r")
        np.save(rows, by_input[graph.external(np.arange(n_nodes))])
    return path


@contextmanager
def limited(n_bytes: int) -> Iterator[None]:
    """Limits what this process allocates and caches from now on."""
    group = CGROUPS / f"lode-epoch-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(n_bytes))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (CGROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def forget_pages(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def epoch(batches: Iterator[Any], model: Any) -> tuple[float, float, int]:
    """Returns seconds, the sum of all rows, and their number; trains a model if there is one."""
    optimizer = torch.optim.Adam(model.parameters()) if model else None
    total, n_rows = 0.0, 0
    start = time.perf_counter()
    for rows, edge_index, n_seeds in batches:
        total += float(rows[:, 0].double().sum())
        n_rows += len(rows)
        if optimizer:
            loss = model(rows, edge_index)[:n_seeds].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return time.perf_counter() - start, total, n_rows


def measure(framework: Framework, source: str, path: Path, n_seeds: int, trains: bool) -> None:
    """Prints the seconds, the sum and the number of rows of an epoch, in a process of its own."""
    is_cold = source.endswith("cold")
    reader: Any = "direct" if is_cold else "mapped"
    torch.manual_seed(1)
    with lodestore.open(path, reader=reader) as graph:
        seeds = torch.from_numpy(np.random.default_rng(5).permutation(graph.nodes))
        rows = path.with_suffix(".npy")
        # Other batches first: the first steps load code and the topology, and make buffers.
        epoch(framework.batches(source, graph, rows, seeds[-2 * BATCH :]), framework.model())
        gc.collect()
        model = framework.model() if trains else None
        if is_cold:
            forget_pages(path.parent)
        else:
            graph["feat"][:]
        batches = framework.batches(source, graph, rows, seeds[:n_seeds])
        if is_cold:
            with limited(graph.nodes * WIDTH * 4 // 10 + OWN_BYTES):
                found = epoch(batches, model)
        else:
            found = epoch(batches, model)
        print(json.dumps(found))


def run(
    framework: Framework, source: str, path: Path, n_seeds: int, trains: str
) -> tuple[float, float, int] | None:
    """Runs an epoch in a process of its own; None where it takes too long."""
    command = [sys.executable, framework.file, "--measure", source, str(path), str(n_seeds), trains]
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        said, _ = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()
        # It is left behind by a process that was killed.
        group = CGROUPS / f"lode-epoch-{process.pid}"
        if group.exists():
            group.rmdir()
    assert process.returncode == 0, f"{source}: exit code {process.returncode}"
    return tuple(json.loads(said.splitlines()[-1]))  # type: ignore[return-value]


def seconds(found: list[tuple[float, float, int] | None]) -> str:
    """Formats the seconds of epochs, in the order of the runs."""
    return ", ".join(f"{of[0]:.2f}" if of else f"over {MOST_SECONDS}" for of in found)


def main(framework: Framework) -> None:
    """Measures every source, or one epoch in a process that `run` has started."""
    if sys.argv[1] == "--measure":
        _, _, source, path, n_seeds, trains = sys.argv
        measure(framework, source, Path(path), int(n_seeds), bool(trains))
        return
    lode, folder, *flags = sys.argv[1:]
    n_nodes, n_seeds = (4_000, 512) if "--small" in flags else (2_000_000, 40 * BATCH)
    path = make(lode, Path(folder), n_nodes)
    if "--make" in flags:
        return
    repeats = next((int(of[10:]) for of in flags if of.startswith("--repeats=")), 1)
    can_limit = os.access(CGROUPS / "cgroup.procs", os.W_OK)
    sources = [of for of in framework.sources if can_limit or not of.endswith("cold")]
    found: dict[tuple[str, str], list[tuple[float, float, int] | None]] = {}
    # One round after the other, so that a disturbance meets all sources alike.
    for _ in range(repeats):
        for source in sources:
            for trains in ["", "trains"]:
                of_source = found.setdefault((source, trains), [])
                if None not in of_source:
                    of_source.append(run(framework, source, path, n_seeds, trains))
    print("| source | seconds of an epoch | rows/s, best | seconds with training |")
    print("|---|---|---|---|")
    for source in framework.sources:
        if source not in sources:
            print(f"| {source} | no memory cgroup (v1) that can be written | | |")
            continue
        loading = found[source, ""]
        rates = [of[2] / of[0] for of in loading if of]
        rate = f"{max(rates):,.0f}" if rates else "-"
        print(f"| {source} | {seconds(loading)} | {rate} | {seconds(found[source, 'trains'])} |")
    sums = {of[1:] for of_source in found.values() for of in of_source if of}
    assert len(sums) == 1, f"the sources gave different rows: {sums}"
    print(f"\n{next(iter(sums))[1]:,} rows of sum {next(iter(sums))[0]:.6f}")
