"""What positions alone say of a stall, and the small questions that all who conclude ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddiag.analysis.hang.positions import Node, Positions
from ddiag.analysis.hang.vote import Mismatch, sibling_groups


@dataclass(frozen=True)
class Verdict:
    """What the positions alone say, before stacks and logs."""

    verdict: str
    culprits: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()
    confidence: str = "medium"
    node: Node | None = None
    """What they are waited for in."""
    waiting: frozenset[int] = frozenset()
    mismatch: Mismatch | None = None
    cycle: tuple[tuple[int, Node], ...] = ()
    fronts: Mapping[int, Node] = field(default_factory=dict)


def earliest(place: Positions, nodes: Sequence[Node]) -> Node | None:
    """The one in which somebody has waited longest."""
    began = since(place)
    return min(nodes, key=lambda node: (began.get(node, 0), node), default=None)


def since(place: Positions) -> dict[Node, int]:
    found: dict[Node, int] = {}
    times = dict(place.front_rows.select("rank", "created_ns").iter_rows())
    for rank, node in place.fronts.items():
        when = times.get(rank)
        if when is not None:
            found[node] = min(when, found.get(node, when))
    return found


def there(place: Positions, node: Node) -> tuple[int, ...]:
    return tuple(sorted(rank for rank, front in place.fronts.items() if front == node))


def usual_count(place: Positions, node: Node) -> int | None:
    """The last call that every sibling group of *node*'s has issued; None without siblings that agree."""
    found = {
        place.reach[rank, group].enqueued
        for group in sibling_groups(node[1], place.desc)
        for rank in place.members[group]
        if (rank, group) in place.reach
    }
    return found.pop() if len(found) == 1 else None
