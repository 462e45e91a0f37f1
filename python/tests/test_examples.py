"""The examples and the bench run, on a small graph."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LODE, Sample

FOLDER = Path(__file__).parent.parent


def run(*args: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_numpy_rows(copied: Sample) -> None:
    assert "version 1 became 2" in run(FOLDER / "examples/numpy_rows.py", copied.path)


def test_plain_loop(sample: Sample, tmp_path: Path) -> None:
    said = run(FOLDER / "examples/plain_loop.py", sample.path, tmp_path / "s")
    assert "epoch 1" in said and "hit_rows" in said


def test_pyg_sage(sample: Sample) -> None:
    pytest.importorskip("torch_geometric")
    assert_trains(run(FOLDER / "examples/pyg_sage.py", sample.path))


def test_graphbolt_sage(sample: Sample) -> None:
    pytest.importorskip("dgl.graphbolt")
    assert_trains(run(FOLDER / "examples/graphbolt_sage.py", sample.path))


def assert_trains(said: str) -> None:
    lines = [line for line in said.splitlines() if line.startswith("epoch")]
    losses = [float(line.split("loss ")[1].split()[0]) for line in lines]
    assert len(losses) == 3 and losses[-1] < losses[0], said


def test_torch_sage(sample: Sample, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert_trains(run(FOLDER / "examples/torch_sage.py", sample.path, tmp_path / "s"))


def test_history(sample: Sample) -> None:
    said = run(FOLDER / "examples/history.py", sample.path).splitlines()
    assert len(said) == 4 and "epoch 1: 0 rows" not in said[0]
    assert "error 0.0000" not in said[1], "histories lag behind the weights"
    for epoch in [3, 4]:
        assert said[epoch - 1] == f"epoch {epoch}: 0 rows lacking, largest error 0.0000"


@pytest.mark.skipif("CI" not in os.environ and "LODE_LONG" not in os.environ, reason="slow")
def test_bench(tmp_path: Path) -> None:
    assert "np.take" in run(FOLDER / "benches/gather.py", LODE, tmp_path, "--small")


@pytest.mark.skipif("CI" not in os.environ and "LODE_LONG" not in os.environ, reason="slow")
def test_bench_of_epochs(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    assert "| graph | " in run(FOLDER / "benches/epoch.py", LODE, tmp_path, "--small")


@pytest.mark.skipif("CI" not in os.environ and "LODE_LONG" not in os.environ, reason="slow")
def test_bench_of_graphbolt(tmp_path: Path) -> None:
    pytest.importorskip("dgl.graphbolt")
    said = run(FOLDER / "benches/epoch_graphbolt.py", LODE, tmp_path, "--small")
    assert "| GraphBolt, graph | " in said
