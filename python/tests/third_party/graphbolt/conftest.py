"""GraphBolt's own tests of features, unmodified, over graphs of lodestore.

They make features of tensors. Here `gb.TorchBasedFeature` imports its tensor into a graph, and is a
`lodestore.graphbolt.Feature` of it. Rows of two dimensions are stored flat, since a tensor of a
graph has a width alone; the class puts back their shape.
"""

from __future__ import annotations

import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    import dgl.graphbolt as gb
    import dgl.graphbolt.impl.torch_based_feature_store as of_gb
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    import lodestore
    import lodestore.graphbolt as lgb

    FOLDER = tempfile.TemporaryDirectory(prefix="lodestore-graphbolt-tests-")
    STOCK = gb.TorchBasedFeature

    class TorchBasedFeature(lgb.Feature):  # type: ignore[misc]
        """The rows of a tensor in a graph."""

        def __init__(self, torch_feature: Any, metadata: Any = None) -> None:
            # GraphBolt's own class checks the arguments.
            STOCK(torch_feature, metadata)
            folder = Path(tempfile.mkdtemp(dir=FOLDER.name)) / "g"
            none = torch.empty(0, dtype=torch.int64)
            settings: dict[str, Any] = {"partitioner": "range", "order": "input"}
            lodestore.import_graph(
                folder,
                edges=(none, none),
                tensors={"rows": torch_feature.flatten(1)},
                nodes=len(torch_feature),
                **settings,
            ).close()
            super().__init__(lodestore.open(folder, writable=True), "rows")
            self.row_shape, self.given = torch_feature.shape[1:], metadata

        def _shaped(self, rows: Any) -> Any:
            return rows.view(len(rows), *self.row_shape)

        def size(self) -> Any:
            return self.row_shape

        def metadata(self) -> Any:
            return super().metadata() if self.given is None else self.given


# GraphBolt's tests ask their own package for the device; these run on the CPU.
sys.modules.setdefault("backend", types.SimpleNamespace(_default_context_str="cpu"))  # type: ignore[arg-type]

SKIPPED = {
    "test_torch_based_feature": "an update changes the number of rows, and `_tensor` is read",
    "test_torch_based_feature_repr": "the text of GraphBolt's own class",
    "test_torch_based_feature_store_repr": "the text of GraphBolt's own class",
}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Skips what asks for more than a feature's interface."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.originalname in SKIPPED:
            item.add_marker(pytest.mark.skip(reason=SKIPPED[item.originalname]))


@pytest.fixture(autouse=True)
def features_of_lodestore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """GraphBolt's name for our class, where tests and its own store look."""
    monkeypatch.setattr(gb, "TorchBasedFeature", TorchBasedFeature)
    monkeypatch.setattr(of_gb, "TorchBasedFeature", TorchBasedFeature)
    yield
