"""Deadlocks: circles of ranks that wait for each other, and which of them departs from the order of all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from ddiag.analysis.hang.graph import Ending, certain, endings, waits
from ddiag.analysis.hang.positions import Node, Positions, node_of
from ddiag.analysis.hang.unseen import Alike
from ddiag.analysis.hang.verdict import Verdict, earliest, there, usual_count

MOST_RANKS = 256
"""Ranks of a circle whose order of calls is compared with that of the others."""


def circle(flight: pl.DataFrame, place: Positions, end: Ending, blocking: Mapping[Node, frozenset[int]]) -> Verdict:
    """A deadlock; where sends close the circle but a rank that only sends is missed elsewhere, that rank."""
    sends = _ranks_in_sends(place, end)
    if sends and not _facing(place, sends) and (released := _without(place, sends)) is not None:
        return released
    ranks = _shortest(place, end, blocking)
    fronts = tuple((rank, place.fronts[rank]) for rank in ranks)
    odd = _other_order(flight, place, end, blocking) or _out_of_order(place, end, blocking)
    if odd:
        return Verdict("deadlock", odd, ranks, "medium", place.fronts[odd[0]], cycle=fronts)
    if any(node[0] == "coll" for node in end.nodes):
        return Verdict("deadlock", (), ranks, "medium", fronts[0][1], cycle=fronts)
    return Verdict("deadlock", ranks, ranks, "high", fronts[0][1], cycle=fronts)


def _other_order(
    flight: pl.DataFrame, place: Positions, end: Ending, blocking: Mapping[Node, frozenset[int]]
) -> tuple[int, ...]:
    """Who issued two calls in another order than most ranks in the same role issued those like them."""
    ranks = list(end.ranks[:MOST_RANKS])
    alike = Alike(flight, place)
    fronts = {row["rank"]: row for row in place.front_rows.filter(pl.col("rank").is_in(ranks)).iter_rows(named=True)}
    opened = _open_calls(place, ranks, set(end.nodes))
    odd = set()
    for rank in ranks:
        held = [row for node, row in opened[rank].items() if rank in blocking[node]]
        if any(_outvoted(rank, alike.of(fronts[rank]), alike.of(row)) for row in held):
            odd.add(rank)
    return tuple(sorted(odd)) if 2 * len(odd) < len(place.dumps) else ()


def _open_calls(place: Positions, ranks: list[int], nodes: set[Node]) -> dict[int, dict[Node, dict[str, object]]]:
    """rank -> its first open entry for each of *nodes*."""
    found: dict[int, dict[Node, dict[str, object]]] = {rank: {} for rank in ranks}
    for row in place.pending.filter(pl.col("rank").is_in(ranks)).iter_rows(named=True):
        node = node_of(row)
        if node in nodes:
            found[row["rank"]].setdefault(node, row)
    return found


def _outvoted(rank: int, first: Mapping[int, int], second: Mapping[int, int]) -> bool:
    """*rank* issued *first* before *second*; most of the others did it the other way round."""
    both = (first.keys() & second.keys()) - {rank}
    same = sum(first[other] < second[other] for other in both)
    return len(both) - same > same


def _out_of_order(place: Positions, end: Ending, blocking: Mapping[Node, frozenset[int]]) -> tuple[int, ...]:
    """Who in a circle of collectives departs from the order of the others; empty when nobody can tell.

    Sibling groups show how many calls belong before this place: who is further is too early, who is short of them has
    left one out. Without siblings the few who are elsewhere than the many depart.
    """
    collectives = [node for node in end.nodes if node[0] == "coll"]
    for node in collectives:
        usual = usual_count(place, node)
        if usual is None:
            continue
        if node[2] > usual:
            return there(place, node)
        short = tuple(sorted(rank for rank in blocking[node] & set(end.ranks) if _short(place, rank, node)))
        if short and len(short) < len(place.members[node[1]]):
            return short
    sizes = Counter({node: len(there(place, node)) for node in end.nodes}).most_common()
    if len(sizes) == 2 and len(collectives) == 2 and sizes[0][1] > sizes[1][1]:
        return there(place, sizes[1][0])
    return ()


def _short(place: Positions, rank: int, node: Node) -> bool:
    reach = place.reach.get((rank, node[1]))
    return reach is not None and reach.enqueued < node[2]


def _ranks_in_sends(place: Positions, end: Ending) -> frozenset[int]:
    ours = {rank for rank in end.ranks if place.fronts[rank][0] == "p2p" and place.fronts[rank][2] == rank}
    only = place.pending.group_by("rank").agg((pl.col("op") == "send").all().alias("sends"))
    return frozenset(ours & set(only.filter(pl.col("sends"))["rank"]))


def _facing(place: Positions, sends: frozenset[int]) -> bool:
    """Two of them send to each other, and neither has issued a receive: nothing else is needed to hold both up."""
    target = {rank: place.fronts[rank][3] for rank in sends}
    return any(target.get(other) == rank for rank, other in target.items())


def _without(place: Positions, ranks: frozenset[int]) -> Verdict | None:
    """The verdict when sends are taken as not holding up *ranks*; None unless one of them is then waited for."""
    fronts = {rank: node for rank, node in place.fronts.items() if rank not in ranks}
    at = replace(place, fronts=fronts, front_rows=place.front_rows.filter(~pl.col("rank").is_in(list(ranks))))
    blocking = certain(waits(at, fronts))
    late = [end for end in endings(fronts, blocking) if not end.nodes and end.ranks[0] in ranks]
    if not late:
        return None
    node = earliest(at, [n for n, by in blocking.items() if by & set(late[0].ranks)])
    return Verdict("late", late[0].ranks, (), "medium", node)


def _shortest(place: Positions, end: Ending, blocking: Mapping[Node, frozenset[int]]) -> tuple[int, ...]:
    """Ranks around the shortest circle through the smallest rank that lies on one."""
    inside = set(end.ranks)
    best: tuple[int, ...] = end.ranks
    for start in end.ranks[:64]:
        before: dict[int, int] = {}
        layer, seen = [start], {start}
        while layer and start not in before:
            following = []
            for rank in layer:
                for target in sorted(blocking[place.fronts[rank]] & inside):
                    if target == start or target not in seen:
                        before.setdefault(target, rank)
                        seen.add(target)
                        following.append(target)
            layer = following
        path = [start]
        while before.get(path[-1], start) != start:
            path.append(before[path[-1]])
        if len(path) < len(best):
            best = (path[0], *reversed(path[1:]))
        if len(best) == 2:
            break
    return best
