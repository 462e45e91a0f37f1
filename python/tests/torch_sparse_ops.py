"""The operators of torch-sparse that PyG's own sampler calls, for fan-outs of -1, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Relation = tuple[str, str, str]


class _Nodes:
    """Nodes of one type in the order of their discovery; the last hop's are the frontier."""

    def __init__(self, seed: Any) -> None:
        self.ids: list[int] = seed.tolist()
        self.known = {node: at for at, node in enumerate(self.ids)}
        self.frontier = range(len(self.ids))

    def position(self, node: int) -> int:
        if node not in self.known:
            self.known[node] = len(self.ids)
            self.ids.append(node)
        return self.known[node]

    def next_hop(self) -> None:
        self.frontier = range(self.frontier.stop, len(self.ids))


def neighbor_sample(
    colptr: Any, row: Any, seed: Any, num_neighbors: Sequence[int], replace: bool, directed: bool
) -> tuple[Any, Any, Any, Any]:
    """Returns all neighbours hop by hop."""
    relation = ("", "", "")
    found = hetero_neighbor_sample(
        [""],
        [relation],
        {"____": colptr},
        {"____": row},
        {"": seed},
        {"____": num_neighbors},
        len(num_neighbors),
        replace,
        directed,
    )
    return found[0][""], found[1]["____"], found[2]["____"], found[3]["____"]


def hetero_neighbor_sample(
    node_types: Sequence[str],
    edge_types: Sequence[Relation],
    colptr: Mapping[str, Any],
    row: Mapping[str, Any],
    seed: Mapping[str, Any],
    num_neighbors: Mapping[str, Sequence[int]],
    num_hops: int,
    replace: bool,
    directed: bool,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns all neighbours hop by hop, by types of nodes and edges."""
    numbers = [number for of_type in num_neighbors.values() for number in of_type]
    assert not replace and directed and all(number == -1 for number in numbers)
    none = torch.empty(0, dtype=torch.int64)
    nodes = {name: _Nodes(seed.get(name, none)) for name in node_types}
    drawn: dict[str, list[tuple[int, int, int]]] = {"__".join(of): [] for of in edge_types}
    for _ in range(num_hops):
        for of in edge_types:
            key, sources, destinations = "__".join(of), nodes[of[0]], nodes[of[2]]
            for at in destinations.frontier:
                node = destinations.ids[at]
                for edge in range(int(colptr[key][node]), int(colptr[key][node + 1])):
                    source = sources.position(int(row[key][edge]))
                    drawn[key].append((source, at, edge))
        for of_type in nodes.values():
            of_type.next_hop()
    columns = {
        key: torch.tensor(edges, dtype=torch.int64).view(-1, 3).T for key, edges in drawn.items()
    }
    return (
        {name: torch.tensor(of_type.ids, dtype=torch.int64) for name, of_type in nodes.items()},
        {key: column[0] for key, column in columns.items()},
        {key: column[1] for key, column in columns.items()},
        {key: column[2] for key, column in columns.items()},
    )
