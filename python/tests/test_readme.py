"""The README's code runs, with the results that it shows."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Sample

README = Path(__file__).parent.parent / "README.md"


def test_readme(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["g", "own"]:
        shutil.copytree(sample.path, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(README), module_relative=False, optionflags=flags)
    assert failed == 0 and tried > 20
    assert os.path.exists("s")


def test_the_training_loop_of_the_readme(sample: Sample, tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    shutil.copytree(sample.path, tmp_path / "g")
    blocks = re.findall(r"```python\n(.+?)```", README.read_text(), re.DOTALL)
    [code] = [block for block in blocks if "NeighborLoader(" in block]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(losses) == 3 and losses[-1] < losses[0], done.stdout
