"""The README's code runs, with the results that it shows."""

from __future__ import annotations

import doctest
import os
import shutil
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
