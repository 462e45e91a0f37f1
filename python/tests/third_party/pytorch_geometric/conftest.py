"""PyG's own tests of stores and custom loaders, unmodified, over graphs of lodestore.

They make empty stores and put tensors and edges into them. lodestore's stores are those of graphs
that were imported, so that `MyFeatureStore` and `MyGraphStore` import a graph for each put: every
read is one of `lodestore.pyg`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    import torch
    import torch_geometric.testing
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch_geometric.testing.decorators
    from torch_geometric.data import EdgeAttr, TensorAttr
    from torch_geometric.data import FeatureStore as PygFeatureStore
    from torch_geometric.data import GraphStore as PygGraphStore
    from torch_sparse_ops import hetero_neighbor_sample, neighbor_sample

    import lodestore
    import lodestore.pyg as lpyg

    FOLDER = tempfile.TemporaryDirectory(prefix="lodestore-pyg-tests-")

    def import_graph(edges: Any, tensors: dict[str, Any], n_nodes: int) -> lodestore.Graph:
        """Imports a graph whose ids are those of the input, open for writing."""
        folder = Path(tempfile.mkdtemp(dir=FOLDER.name)) / "g"
        settings: dict[str, Any] = {"partitioner": "range", "order": "input", "nodes": n_nodes}
        lodestore.import_graph(folder, edges=edges, tensors=tensors, **settings).close()
        return lodestore.open(folder, writable=True)

    class MyFeatureStore(PygFeatureStore):  # type: ignore[misc]
        """Each attribute in a graph, behind lodestore's FeatureStore."""

        def __init__(self) -> None:
            super().__init__()
            self.stores: dict[tuple[Any, Any], lpyg.FeatureStore] = {}

        @staticmethod
        def inner(attr: Any) -> Any:
            """The attribute without its group, in a graph that has one tensor."""
            return TensorAttr(None, "x", attr.index)

        def find(self, attr: Any) -> lpyg.FeatureStore:
            return self.stores[attr.group_name, attr.attr_name]

        def _put_tensor(self, tensor: Any, attr: Any) -> bool:
            key = (attr.group_name, attr.attr_name)
            if key not in self.stores:
                if isinstance(attr.index, torch.Tensor):
                    assert torch.equal(attr.index, torch.arange(len(tensor)))
                none = torch.empty(0, dtype=torch.int64)
                graph = import_graph((none, none), {"rows": tensor}, len(tensor))
                self.stores[key] = lpyg.FeatureStore(graph, {"x": "rows"})
                return True
            store = self.stores[key]
            is_put = store.put_tensor(tensor, self.inner(attr))
            store.graph.commit()
            return bool(is_put)

        def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
            return bool(self.put_tensor(tensor, *args, **kwargs))

        def _get_tensor(self, attr: Any) -> Any:
            return self.find(attr).get_tensor(self.inner(attr))

        def _get_tensor_size(self, attr: Any) -> Any:
            return self.find(attr).get_tensor_size(self.inner(attr))

        def _remove_tensor(self, attr: Any) -> bool:
            return self.stores.pop((attr.group_name, attr.attr_name), None) is not None

        def get_all_tensor_attrs(self) -> list[Any]:
            return [self._tensor_attr_cls.cast(*key) for key in self.stores]

    class MyGraphStore(PygGraphStore):  # type: ignore[misc]
        """Each put of edges in a graph, behind lodestore's GraphStore."""

        def __init__(self) -> None:
            super().__init__()
            self.stores: dict[tuple[Any, ...], tuple[lpyg.GraphStore, tuple[int, int]]] = {}

        @staticmethod
        def key(attr: Any) -> tuple[Any, ...]:
            return (attr.edge_type, attr.layout.value, attr.is_sorted, attr.size)

        def _put_edge_index(self, edge_index: Any, attr: Any) -> bool:
            layout, (row, col) = attr.layout.value, edge_index
            n_row, n_col = attr.size or (None, None)
            if layout == "csr":
                n_row = len(row) - 1
                row = torch.arange(n_row).repeat_interleave(row.diff())
            elif layout == "csc":
                n_col = len(col) - 1
                col = torch.arange(n_col).repeat_interleave(col.diff())
            size = (n_row or int(row.max()) + 1, n_col or int(col.max()) + 1)
            graph = import_graph((row, col), {}, max(size))
            self.stores[self.key(attr)] = (lpyg.GraphStore(graph), size)
            return True

        def _get_edge_index(self, attr: Any) -> Any:
            if self.key(attr) not in self.stores:
                return None
            store, (n_row, n_col) = self.stores[self.key(attr)]
            row, colptr, _ = store.csc()
            if attr.layout.value == "csc":
                return row, colptr[: n_col + 1]
            col = torch.arange(len(colptr) - 1).repeat_interleave(colptr.diff())
            if attr.layout.value == "coo" and attr.is_sorted:
                return row, col
            by_row = row.argsort(stable=True)
            if attr.layout.value == "coo":
                return row[by_row], col[by_row]
            ends = torch.bincount(row, minlength=n_row).cumsum(0)
            return torch.cat([ends.new_zeros(1), ends]), col[by_row]

        def _remove_edge_index(self, attr: Any) -> bool:
            return self.stores.pop(self.key(attr), None) is not None

        def get_all_edge_attrs(self) -> list[Any]:
            return [EdgeAttr(*key) for key in self.stores]

    # The tests import them by these names.
    torch_geometric.testing.MyFeatureStore = MyFeatureStore
    torch_geometric.testing.MyGraphStore = MyGraphStore
    # What its decorators look at: PyG's sampler has the operators below.
    torch_geometric.testing.decorators.WITH_TORCH_SPARSE = True

# Tests of the loader that read no custom store: PyG's sampler over its own `Data`.
OTHERS_OF_THE_LOADER = "test_neighbor_loader.py"


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out tests that use neither store."""
    out = [
        item
        for item in items
        if item.path.name == OTHERS_OF_THE_LOADER and "custom" not in item.originalname
    ]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(autouse=True)
def torch_sparse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Operators that PyG's sampler calls, and that no wheel of pip has."""
    operators = torch.ops.torch_sparse
    monkeypatch.setattr(operators, "neighbor_sample", neighbor_sample, raising=False)
    monkeypatch.setattr(operators, "hetero_neighbor_sample", hetero_neighbor_sample, raising=False)
    monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_SPARSE", True)
    monkeypatch.setattr(torch_geometric.typing, "WITH_PYG_LIB", False)
    yield
