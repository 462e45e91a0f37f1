"""Datasets of the Open Graph Benchmark by name, imported once.

>>> import lodestore.ogb
>>> graph = lodestore.ogb.open("ogbn-arxiv", root="dataset", undirected=True)   # doctest: +SKIP
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ._importing import import_graph
from ._lodestore import Graph
from ._lodestore import open as open_graph
from .errors import StoreError

__all__ = ["open"]

# Suffixes that ogb's loaders of several frameworks append to the folder of a dataset.
_SUFFIXES = ["", "_pyg", "_dgl"]


def open(name: str, root: str | PathLike[str] = "dataset", **settings: Any) -> Graph:
    """Opens the graph of a dataset, which is imported to its folder the first time.

    - name: as ogb has it, such as "ogbn-products".
    - root: where ogb downloads; nothing is downloaded here.
    - settings: arguments of `import_graph` for the first time, such as `undirected` and `parts`.
      Later calls may omit them; others than those of the first time raise ValueError.

    Raises StoreError where there is no such folder, and as `import_graph`.
    """
    folders = [Path(fspath(root)) / (name.replace("-", "_") + suffix) for suffix in _SUFFIXES]
    folder = next((folder for folder in folders if (folder / "raw").is_dir()), None)
    if folder is None:
        raise StoreError(
            f"{folders[0]}: no dataset with a folder raw; download it, for example by "
            f"ogb.nodeproppred.NodePropPredDataset({name!r}, root={fspath(root)!r})"
        )
    out, note = folder / "lodestore", folder / "lodestore.settings"
    stated = ", ".join(f"{key}={settings[key]!r}" for key in sorted(settings.keys() - {"progress"}))
    if out.exists():
        first = note.read_text() if note.exists() else stated
        if stated and stated != first:
            raise ValueError(f"{out} was imported with ({first}), not ({stated}); remove it first")
        return open_graph(out)
    graph = import_graph(out, dataset=("ogb", folder), **settings)
    note.write_text(stated)
    return graph
