"""Times an epoch of PyG's loader over tensors in memory, a graph, and `np.memmap`; with and without
training.

    python epoch.py LODE FOLDER [--small] [--make]

LODE is the binary, FOLDER takes the graph and its rows (3.3 GB; with --small 6 MB, which only
checks) and keeps them for the next run; --make does no more. All sources get the same batches, from
lodestore's sampler in the main process, and the sums of their rows are compared. Each epoch has a
process of its own, since pages that a process maps stay cached. "Cold" ones start without cached
pages, in a memory cgroup with room for a tenth of the rows and 128 MB for batches and the model;
that needs root and cgroup v1.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch_geometric.loader import NeighborLoader

import lodestore
import lodestore.pyg as lpyg

SOURCES = ["memory", "graph", "graph, cold", "memmap, cold", "memmap, MADV_RANDOM, cold"]
CGROUPS = Path("/sys/fs/cgroup/memory")
FANOUT, BATCH, DEGREE, WIDTH = [10, 5], 256, 10, 128
# Memory for the batches and the model, beside what the process has before the epoch.
OWN_BYTES = 128 << 20
# Most seconds of a process.
MOST_SECONDS = 120


class Rows(torch_geometric.data.FeatureStore):  # type: ignore[misc]
    """Rows of a tensor, in memory or mapped."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = x

    def get_all_tensor_attrs(self) -> list[Any]:
        return [torch_geometric.data.TensorAttr(None, "x")]

    def _get_tensor(self, attr: Any) -> Any:
        return self.x[attr.index]

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...]:
        return tuple(self.x.shape)

    def _put_tensor(self, *_: Any) -> bool:
        return False

    def _remove_tensor(self, *_: Any) -> bool:
        return False


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


def loader_of(source: str, graph: lodestore.Graph, rows: Path, seeds: Any) -> Any:
    if source.startswith("graph"):
        attrs = {"x": "feat"}
        return lpyg.NeighborLoader(graph, FANOUT, seeds, attrs=attrs, batch_size=BATCH, window=4)
    x = np.load(rows, mmap_mode="c" if source.startswith("memmap") else None)
    if "MADV_RANDOM" in source:
        # Without it the kernel reads around each row as much as its setting of the disk says.
        x._mmap.madvise(mmap.MADV_RANDOM)
    return NeighborLoader(
        data=(Rows(torch.from_numpy(x)), lpyg.GraphStore(graph)),
        num_neighbors=FANOUT,
        input_nodes=seeds,
        batch_size=BATCH,
        neighbor_sampler=lpyg.NeighborSampler(graph, FANOUT),
        filter_per_worker=False,
    )


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


def epoch(loader: Any, trains: bool) -> tuple[float, float, int]:
    """Returns seconds, the sum of all rows, and their number."""
    torch.manual_seed(1)
    model = torch_geometric.nn.GraphSAGE(WIDTH, 64, 2, 8)
    optimizer = torch.optim.Adam(model.parameters())
    total, n_rows = 0.0, 0
    start = time.perf_counter()
    for batch in loader:
        total += float(batch.x[:, 0].double().sum())
        n_rows += len(batch.x)
        if trains:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return time.perf_counter() - start, total, n_rows


def measure(source: str, path: Path, n_seeds: int, trains: bool) -> None:
    """In a process of its own: prints the seconds, the sum and the number of rows of an epoch."""
    is_cold = source.endswith("cold")
    reader: Any = "direct" if is_cold else "mapped"
    with lodestore.open(path, reader=reader) as graph:
        seeds = torch.from_numpy(np.random.default_rng(5).permutation(graph.nodes))
        rows = path.with_suffix(".npy")
        # Other batches first: the first steps load code and the topology, and make buffers.
        epoch(loader_of(source, graph, rows, seeds[-2 * BATCH :]), True)
        gc.collect()
        if is_cold:
            forget_pages(path.parent)
        else:
            graph["feat"][:]
        loader = loader_of(source, graph, rows, seeds[:n_seeds])
        # Equal seeds: our loader counts its epochs from 1 on.
        loader.node_sampler.epoch[0] = 0 if source.startswith("graph") else 1
        if is_cold:
            with limited(graph.nodes * WIDTH * 4 // 10 + OWN_BYTES):
                found = epoch(loader, trains)
        else:
            found = epoch(loader, trains)
        print(json.dumps(found))


def main() -> None:
    lode, folder, *flags = sys.argv[1:]
    n_nodes, n_seeds = (4_000, 512) if "--small" in flags else (2_000_000, 40 * BATCH)
    path = make(lode, Path(folder), n_nodes)
    if "--make" in flags:
        return
    can_limit = os.access(CGROUPS / "cgroup.procs", os.W_OK)
    print("| source | epoch | rows/s | epoch with training |")
    print("|---|---|---|---|")
    sums = set()
    for source in SOURCES:
        if source.endswith("cold") and not can_limit:
            print(f"| {source} | no memory cgroup (v1) that can be written | | |")
            continue
        found = [run(source, path, n_seeds, trains) for trains in ["", "trains"]]
        sums |= {of[1:] for of in found if of is not None}
        times = [f"{of[0]:.2f} s" if of else f"over {MOST_SECONDS} s" for of in found]
        rate = f"{found[0][2] / found[0][0]:,.0f}" if found[0] else "-"
        print(f"| {source} | {times[0]} | {rate} | {times[1]} |", flush=True)
    assert len(sums) == 1, f"the sources gave different rows: {sums}"


def run(source: str, path: Path, n_seeds: int, trains: str) -> tuple[float, float, int] | None:
    """Runs an epoch in a process of its own; None where it takes too long."""
    command = [sys.executable, __file__, "--measure", source, str(path), str(n_seeds), trains]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    return tuple(json.loads(said))  # type: ignore[return-value]


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        measure(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), bool(sys.argv[5]))
    else:
        main()
