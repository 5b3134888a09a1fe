"""From positions in dumps or rings to a verdict: one root, everybody else its victim, or an honest "undecided"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from ddiag.analysis.hang.graph import Ending, endings, waits
from ddiag.analysis.hang.positions import COMPLETED, STARTED, SYNCHRONISING, Node, Positions, positions
from ddiag.analysis.hang.vote import Mismatch, mismatches

DUMPED = ("flight", "ring")


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


def conclude(flight: pl.DataFrame, status: pl.DataFrame, world: frozenset[int]) -> tuple[Verdict, Positions]:
    """The verdict over all groups; ``running`` when nobody waits. *world*: ranks the job is known to have."""
    place = positions(flight, status)
    odd = [one for one in mismatches(flight, place.desc) if one.open]
    if not place.fronts:
        return Verdict("running"), place
    blocking = waits(place, place.fronts)
    ends = endings(place.fronts, blocking)
    found = _mismatched(odd, ends, place) or _settled(place, ends, blocking) or _silent(place, ends, blocking)
    return replace(found, fronts=place.fronts, waiting=frozenset(place.fronts)), place


def _mismatched(odd: Sequence[Mismatch], ends: Sequence[Ending], place: Positions) -> Verdict | None:
    """A disagreement explains the stall unless a rank that waits nowhere holds up more."""
    if not odd:
        return None
    first = odd[0]
    members = set(place.members[first.group])
    late = [end for end in ends if not end.nodes and end.ranks[0] in place.dumps]
    if late and not members & (set(late[0].ranks) | late[0].blocked):
        return None
    node = ("coll", first.group, first.seq, -1)
    if first.odd:
        sure = len(first.signatures) > 2 * len(first.odd)
        return Verdict("mismatch", first.odd, (), "high" if sure else "medium", node, mismatch=first)
    few = tuple(sorted(first.signatures)) if len(first.signatures) == 2 else ()
    return Verdict("mismatch", few, tuple(sorted(first.signatures)), "low", node, mismatch=first)


def _settled(place: Positions, ends: Sequence[Ending], blocking: Mapping[Node, frozenset[int]]) -> Verdict | None:
    """What dumps of the ranks concerned show; None when only ranks without dump explain the stall."""
    late = [end for end in ends if not end.nodes and end.ranks[0] in place.dumps]
    cycles = [end for end in ends if end.cyclic]
    if late and (not cycles or len(late[0].blocked) >= len(cycles[0].blocked)):
        ranks = tuple(sorted(rank for end in late for rank in end.ranks))
        node = _missed(place, set(ranks), blocking)
        sure = _clearly_absent(place, ranks, node)
        return Verdict("late", ranks, (), "high" if sure else "medium", node)
    if cycles:
        return _cycle(place, cycles[0], blocking)
    whole = [end.nodes[0] for end in ends if end.nodes and not end.ranks]
    return _all_in(place, whole) if whole else None


def _missed(place: Positions, ranks: set[int], blocking: Mapping[Node, frozenset[int]]) -> Node | None:
    """The call that misses most of *ranks*: a collective rather than a receive, then the longest wait."""
    nodes = [node for node, by in blocking.items() if by & ranks]
    most = max((len(blocking[node] & ranks) for node in nodes), default=0)
    best = [node for node in nodes if len(blocking[node] & ranks) == most]
    return _earliest(place, [node for node in best if node[0] == "coll"] or best)


def _clearly_absent(place: Positions, ranks: Sequence[int], node: Node | None) -> bool:
    """Every culprit's dump shows that it did not come, and they are fewer than those who did."""
    if node is None or any(rank in place.wrapped and (rank, node[1]) not in place.reach for rank in ranks):
        return False
    return len(ranks) <= max(1, len(place.members.get(node[1], ())) // 2)


def _earliest(place: Positions, nodes: Sequence[Node]) -> Node | None:
    """The one in which somebody has waited longest."""
    since = _since(place)
    return min(nodes, key=lambda node: (since.get(node, 0), node), default=None)


def _since(place: Positions) -> dict[Node, int]:
    found: dict[Node, int] = {}
    times = dict(place.front_rows.select("rank", "created_ns").iter_rows())
    for rank, node in place.fronts.items():
        when = times.get(rank)
        if when is not None:
            found[node] = min(when, found.get(node, when))
    return found


def _cycle(place: Positions, end: Ending, blocking: Mapping[Node, frozenset[int]]) -> Verdict:
    """A deadlock; where sends close the circle but a rank that only sends is missed elsewhere, that rank."""
    sends = _ranks_in_sends(place, end)
    if sends and (released := _without(place, sends)) is not None:
        return released
    ranks = _shortest(place, end, blocking)
    fronts = {rank: place.fronts[rank] for rank in ranks}
    votes = Counter(place.fronts[rank] for rank in end.ranks)
    ranked = votes.most_common()
    collective = all(node[0] == "coll" for node in votes)
    if collective and len(ranked) == 2 and ranked[0][1] > ranked[1][1]:
        odd = tuple(rank for rank in end.ranks if place.fronts[rank] == ranked[1][0])
        return Verdict("deadlock", odd, ranks, "medium", ranked[0][0], cycle=tuple(fronts.items()))
    return Verdict("deadlock", ranks, ranks, "high", fronts[ranks[0]], cycle=tuple(fronts.items()))


def _ranks_in_sends(place: Positions, end: Ending) -> frozenset[int]:
    ours = {rank for rank in end.ranks if place.fronts[rank][0] == "p2p" and place.fronts[rank][2] == rank}
    only = place.pending.group_by("rank").agg((pl.col("op") == "send").all().alias("sends"))
    return frozenset(ours & set(only.filter(pl.col("sends"))["rank"]))


def _without(place: Positions, ranks: frozenset[int]) -> Verdict | None:
    """The verdict when sends are taken as not holding up *ranks*; None unless one of them is then waited for."""
    fronts = {rank: node for rank, node in place.fronts.items() if rank not in ranks}
    at = replace(place, fronts=fronts, front_rows=place.front_rows.filter(~pl.col("rank").is_in(list(ranks))))
    blocking = waits(at, fronts)
    late = [end for end in endings(fronts, blocking) if not end.nodes and end.ranks[0] in ranks]
    if not late:
        return None
    node = _earliest(at, [n for n, by in blocking.items() if by & set(late[0].ranks)])
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


def _all_in(place: Positions, nodes: Sequence[Node]) -> Verdict:
    """Calls that everybody came to: done by some, not started by few, or in flight."""
    behind = {node: _behind(place, node) for node in nodes}
    stuck = [node for node in nodes if behind[node][0]]
    if stuck:
        ranks = tuple(sorted({rank for node in stuck for rank in behind[node][0]}))
        node = _earliest(place, stuck)
        verdict = behind[stuck[0]][1]
        return Verdict(verdict, ranks, (), "medium", node)
    node = _earliest(place, nodes)
    here = tuple(sorted(rank for rank, front in place.fronts.items() if front == node))
    return Verdict("in_flight", (), here, "medium", node)


def _behind(place: Positions, node: Node) -> tuple[tuple[int, ...], str]:
    """Members that have not completed (or begun) what others have, when they are not the larger part."""
    kind, group, seq, _ = node
    there = tuple(sorted(rank for rank, front in place.fronts.items() if front == node))
    if kind == "p2p":
        return (), ""
    done = [rank for rank in place.members[group] if place.state(rank, group, seq) == COMPLETED]
    rows = place.front_rows.filter(pl.col("rank").is_in(list(there)))
    op = rows["op"][0]
    if done and op in SYNCHRONISING and len(there) <= len(done):
        return there, "partly_done"
    states = dict(rows.select("rank", "state").iter_rows())
    begun = [rank for rank in there if states[rank] == STARTED]
    waiting = tuple(rank for rank in there if states[rank] != STARTED)
    if waiting and 2 * len(waiting) < len(there) and len(begun) + len(waiting) == len(place.members[group]):
        return waiting, "gpu_side"
    return (), ""


def _silent(place: Positions, ends: Sequence[Ending], blocking: Mapping[Node, frozenset[int]]) -> Verdict:
    """Only ranks without a dump (or whose ring lost the place) explain the stall."""
    unknown = {rank for end in ends if not end.nodes for rank in end.ranks}
    last = [node for node, ranks in blocking.items() if ranks and ranks <= unknown]
    shared = [rank for rank in sorted(unknown) if all(rank in blocking[node] for node in last)]
    node = _earliest(place, last)
    if len(shared) == 1:
        return Verdict("suspect_by_absence", tuple(shared), (), "medium", node)
    first = tuple(sorted(blocking[node])) if node is not None else ()
    return Verdict("undecided", (), tuple(shared) or first or tuple(sorted(unknown)), "low", node)
