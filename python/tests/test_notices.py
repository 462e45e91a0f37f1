"""Files of other projects are as their projects published them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "third_party"
OURS = {"README.md", "conftest.py", "__init__.py"}


def test_files_of_other_projects_are_unmodified() -> None:
    rows = re.findall(r"\| `(\S+)` \| `([0-9a-f]{64})` \|", (FOLDER / "README.md").read_text())
    stated = dict(rows)
    found = {
        str(path.relative_to(FOLDER)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.rglob("*")
        if path.is_file() and path.name not in OURS and "__pycache__" not in path.parts
    }
    assert found == stated
    assert {Path(name).name for name in stated} >= {"LICENSE", "test_feature_store.py"}
