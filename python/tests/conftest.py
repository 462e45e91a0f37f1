"""Graphs whose every row is known, imported by `lode`; servers of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lodestore

LODE = os.environ.get("LODESTORE_LODE", "lode")
SEED = 20260801
N_NODES = 3001
# Nodes of the arrays that tests of imports take.
N_INPUT_NODES = 400
N_PARTS = 3
DTYPES = {
    "f32": ("f32", np.float32),
    "f16": ("f16", np.float16),
    "f64": ("f64", np.float64),
    "u8": ("u8", np.uint8),
    "i8": ("i8", np.int8),
    "i16": ("i16", np.int16),
    "i32": ("i32", np.int32),
    "i64": ("i64", np.int64),
}


def lode(*args: object) -> str:
    done = subprocess.run([LODE, *map(str, args)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass
class Sample:
    """A graph on disk, its rows by node id, and its edges."""

    path: Path
    rows: dict[str, np.ndarray]
    external: np.ndarray
    edges: set[tuple[int, int]]
    splits: np.ndarray


def import_sample(
    folder: Path, out: Path, *, n_nodes: int = N_NODES, parts: int = N_PARTS
) -> Sample:
    rng = np.random.default_rng(SEED)
    edges = rng.integers(0, n_nodes, (4 * n_nodes, 2), dtype=np.uint32)
    rows: dict[str, np.ndarray] = {}
    for name, (_, dtype) in DTYPES.items():
        raw = rng.integers(-100, 100, (n_nodes, 5))
        rows[name] = raw.astype(dtype)
    rows["feat"] = rng.standard_normal((n_nodes, 33)).astype(np.float32)
    rows["label"] = rng.integers(0, 7, n_nodes)
    rows["split"] = rng.choice(np.array([0, 1, 2, 255], np.uint8), n_nodes)
    rows["half"] = rows["feat"].astype(np.float16)
    np.save(folder / "edges.npy", edges)
    args: list[object] = ["import", "--edges", folder / "edges.npy", "--parts", parts]
    for name, values in rows.items():
        np.save(folder / f"{name}.npy", values)
        args += ["--tensor", f"{name}={folder / name}.npy"]
    np.save(folder / "bf.npy", rows["feat"])
    args += ["--tensor", f"bf={folder / 'bf.npy'}", "--dtype", "bf=bf16"]
    lode(*args, "--out", out)
    with lodestore.open(out) as graph:
        external = graph.external(np.arange(n_nodes))
    rows["bf"] = to_bf16(rows["feat"])
    internal = np.empty(n_nodes, np.int64)
    internal[external] = np.arange(n_nodes)
    own = {(int(internal[a]), int(internal[b])) for a, b in edges}
    by_id = {name: values[external] for name, values in rows.items()}
    return Sample(out, by_id, external, own, by_id["split"])


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Returns the bits of bf16, rounded to the nearest, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """Returns edges, features and labels of a graph that is to be imported."""
    rng = np.random.default_rng(7)
    return {
        "edges": rng.integers(0, N_INPUT_NODES, (2, 3000)),
        "feat": rng.standard_normal((N_INPUT_NODES, 9)).astype(np.float32),
        "label": rng.integers(0, 5, N_INPUT_NODES),
    }


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_interrupts() -> None:
    """Installs the handler of SIGINT.

    A shell's job in the background ignores SIGINT, and Python then installs no handler.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("sample")
    return import_sample(folder, folder / "g")


@pytest.fixture
def graph(sample: Sample) -> Iterator[lodestore.Graph]:
    with lodestore.open(sample.path) as graph:
        yield graph


@pytest.fixture
def copied(sample: Sample, tmp_path: Path) -> Sample:
    """Returns a graph of the test's own, to be written or damaged."""
    path = tmp_path / "own"
    shutil.copytree(sample.path, path)
    return Sample(path, sample.rows, sample.external, sample.edges, sample.splits)


class Server:
    """A `lode serve`, stopped at the end."""

    def __init__(self, path: Path, address: str, *args: str) -> None:
        listen = ["--unix", address[5:]] if address.startswith("unix:") else ["--listen", address]
        command = [LODE, "serve", str(path), "--shards", "1", *listen, *args]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[Server, str]]]:
    servers = []

    def start(path: Path, *args: str, tcp: dict[str, Any] | None = None) -> tuple[Server, str]:
        """Starts a server on a socket of its own, or on TCP for clients with arguments `tcp`."""
        address = f"unix:{tmp_path}/s{len(servers)}"
        if tcp is not None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"127.0.0.1:{free.getsockname()[1]}"
        server = Server(path, address, *args)
        servers.append(server)
        end = time.monotonic() + 30
        while True:
            try:
                lodestore.connect(address, deadline=2.0, **(tcp or {})).close()
                return server, address
            except lodestore.ServerError:
                if server.process.poll() is not None or time.monotonic() > end:
                    server.stop()
                    pytest.fail(f"no server: {server.process.stdout.read()}")  # type: ignore[union-attr]
                time.sleep(0.05)

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Makes a folder with certificates of an authority and for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    for command in [
        f"req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority",
        f"req {key} -keyout server.key -out server.csr -subj /CN=server",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names "
        "-out server.pem",
    ]:
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "server.key").chmod(0o600)
    return tmp_path


def in_process(code: str, *args: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own, in a folder that has no `lodestore` to import."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd="/")
