"""Who waits for whom: ranks and the calls they wait in, with cycles condensed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddiag.analysis.hang.positions import (
    ABSENT,
    COMPLETED,
    EVICTED,
    NO_DUMP,
    SCHEDULED,
    SYNCHRONISING,
    Node,
    Positions,
)

Vertex: TypeAlias = int | Node


@dataclass(frozen=True)
class Ending:
    """Where chains of waiting end: a rank that waits nowhere, a call that all are in, or a cycle."""

    ranks: tuple[int, ...]
    nodes: tuple[Node, ...]
    blocked: frozenset[int]
    """Ranks that wait for it in the end (itself not counted)."""

    @property
    def cyclic(self) -> bool:
        return bool(self.ranks and self.nodes)


@dataclass(frozen=True)
class Blockers:
    """Whom those in a call wait for."""

    certain: frozenset[int]
    """Not there according to their own dump, or held up in an earlier call."""
    unknown: frozenset[int]
    """Without a dump, or their ring has lost the place: they may be there or not."""

    @property
    def all(self) -> frozenset[int]:
        return self.certain | self.unknown


def blockers(place: Positions, node: Node, at: Mapping[Node, frozenset[int]], op: str) -> Blockers:
    """Ranks that those in *node* wait for."""
    kind, group, first, _ = node
    if kind == "p2p":
        return _p2p_blockers(place, node, at)
    states = {rank: place.state(rank, group, first) for rank in place.members[group]}
    took_part = op in SYNCHRONISING and COMPLETED in states.values()
    there = at[node]
    late = {rank for rank, state in states.items() if state == ABSENT}
    held = {rank for rank, state in states.items() if state == SCHEDULED} - there
    unknown = {rank for rank, state in states.items() if state in (NO_DUMP, EVICTED)} if not took_part else set()
    return Blockers(frozenset(late | held), frozenset(unknown))


def _p2p_blockers(place: Positions, node: Node, at: Mapping[Node, frozenset[int]]) -> Blockers:
    _, group, source, target = node
    there = at[node]
    missing = {source, target} - there
    pair = (group, source, target)
    met = missing == {source} and place.sends.get(pair, 0) > 0 and source not in place.fronts
    met = met or (missing == {target} and place.recvs.get(pair, 0) > 0 and target not in place.fronts)
    if met:
        return Blockers(frozenset(), frozenset())
    return Blockers(frozenset(missing & place.dumps), frozenset(missing - place.dumps))


def waits(place: Positions, fronts: Mapping[int, Node]) -> dict[Node, Blockers]:
    """For each call that somebody waits in, whom they wait for."""
    there: dict[Node, set[int]] = defaultdict(set)
    for rank, node in fronts.items():
        there[node].add(rank)
    at = {node: frozenset(ranks) for node, ranks in there.items()}
    ops = dict(zip(place.front_rows["rank"], place.front_rows["op"], strict=True))
    return {node: blockers(place, node, at, ops[min(ranks)]) for node, ranks in at.items()}


def certain(blocking: Mapping[Node, Blockers]) -> dict[Node, frozenset[int]]:
    """Only what dumps show."""
    return {node: ranks.certain for node, ranks in blocking.items()}


def possible(blocking: Mapping[Node, Blockers]) -> dict[Node, frozenset[int]]:
    """With ranks of which nothing is known."""
    return {node: ranks.all for node, ranks in blocking.items()}


def endings(fronts: Mapping[int, Node], blocking: Mapping[Node, frozenset[int]]) -> list[Ending]:
    """Components without a way out, those that most ranks wait for first."""
    return _parts(fronts, blocking, closed=True)


def circles(fronts: Mapping[int, Node], blocking: Mapping[Node, frozenset[int]]) -> list[Ending]:
    """All circles. A call needs every member: who waits in a circle waits for ever, whatever else it waits for."""
    return [part for part in _parts(fronts, blocking, closed=False) if part.cyclic]


def _parts(fronts: Mapping[int, Node], blocking: Mapping[Node, frozenset[int]], *, closed: bool) -> list[Ending]:
    edges: dict[Vertex, Sequence[Vertex]] = {rank: (node,) for rank, node in fronts.items()}
    edges.update({node: sorted(ranks) for node, ranks in blocking.items()})
    for ranks in blocking.values():
        edges.update({rank: () for rank in ranks if rank not in edges})
    component = _components(edges)
    out = {component[a] for a, targets in edges.items() for b in targets if component[a] != component[b]}
    parts: dict[int, list[Vertex]] = defaultdict(list)
    for vertex, number in component.items():
        if not (closed and number in out):
            parts[number].append(vertex)
    wanted = parts.values() if closed else [part for part in parts.values() if len(part) > 1]
    back: dict[Vertex, list[Vertex]] = defaultdict(list)
    for a, targets in edges.items():
        for b in targets:
            back[b].append(a)
    found = [_ending(part, back) for part in wanted]
    return sorted(found, key=lambda one: (-len(one.blocked), one.ranks, one.nodes))


def _ending(part: Sequence[Vertex], back: Mapping[Vertex, Sequence[Vertex]]) -> Ending:
    seen, todo = set(part), list(part)
    while todo:
        for before in back.get(todo.pop(), ()):
            if before not in seen:
                seen.add(before)
                todo.append(before)
    ranks = tuple(sorted(v for v in part if isinstance(v, int)))
    nodes = tuple(sorted(v for v in part if not isinstance(v, int)))
    return Ending(ranks, nodes, frozenset(v for v in seen if isinstance(v, int)) - frozenset(ranks))


def _components(edges: Mapping[Vertex, Sequence[Vertex]]) -> dict[Vertex, int]:
    """Strongly connected components (Tarjan), without recursion."""
    order: dict[Vertex, int] = {}
    low: dict[Vertex, int] = {}
    component: dict[Vertex, int] = {}
    stack: list[Vertex] = []
    for root in edges:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        work: list[tuple[Vertex, Iterator[Vertex]]] = [(root, iter(edges[root]))]
        while work:
            vertex, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    work.append((target, iter(edges[target])))
                    break
                if target not in component:
                    low[vertex] = min(low[vertex], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == order[vertex]:
                    _close(vertex, stack, component)
    return component


def _close(vertex: Vertex, stack: list[Vertex], component: dict[Vertex, int]) -> None:
    """Everything above *vertex* on the stack is one component."""
    number = len(component)
    while True:
        member = stack.pop()
        component[member] = number
        if member == vertex:
            return
