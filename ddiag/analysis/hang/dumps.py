"""From positions in dumps or rings to a verdict: one root, everybody else its victim, or an honest "undecided"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from ddiag.analysis.hang.circles import circle
from ddiag.analysis.hang.departed import departed
from ddiag.analysis.hang.graph import Blockers, Ending, certain, circles, endings, possible, waits
from ddiag.analysis.hang.positions import COMPLETED, STARTED, SYNCHRONISING, Node, Positions, positions
from ddiag.analysis.hang.unseen import with_witnesses
from ddiag.analysis.hang.verdict import Verdict, earliest, since, there, usual_count
from ddiag.analysis.hang.vote import Mismatch, mismatches, unlike_siblings, with_size

DUMPED = ("flight", "ring")
FOREVER_NS = 1 << 62


def conclude(flight: pl.DataFrame, status: pl.DataFrame) -> tuple[Verdict, Positions]:
    """The verdict over all groups; ``running`` when nobody waits."""
    place = positions(flight, status)
    if not place.fronts:
        return Verdict("running"), place
    calls = with_size(flight)
    blocking = with_witnesses(flight, place, waits(place, place.fronts))
    known = endings(place.fronts, certain(blocking))
    ends = endings(place.fronts, possible(blocking))
    odd = [one for one in mismatches(calls, place.desc) if one.open]
    found = (
        _mismatched(odd, known, place)
        or _settled(flight, place, known, blocking)
        or _unlike(place, calls, blocking)
        or _all_in(place, [end.nodes[0] for end in ends if end.nodes and not end.ranks])
        or _stuck_gpu(place, blocking)
        or _silent(place, ends, blocking)
    )
    found = _departing(flight, place, found)
    return replace(found, fronts=place.fronts, waiting=frozenset(place.fronts)), place


def _departing(flight: pl.DataFrame, place: Positions, found: Verdict) -> Verdict:
    """Where nothing else names a rank that left a dump: one whose order of calls departs from the others'."""
    named = found.confidence == "high" or found.verdict in ("late", "partly_done", "gpu_side", "in_flight")
    if named or (found.culprits and found.verdict != "suspect_by_absence"):
        return found
    odd = departed(flight, place, found.candidates)
    if not odd or (found.mismatch is not None and not set(odd) <= set(found.candidates)):
        return found
    verdict = "deadlock" if found.verdict == "suspect_by_absence" else found.verdict
    verdict = "mismatch" if verdict == "undecided" else verdict
    return replace(found, verdict=verdict, culprits=odd, confidence="medium")


def _mismatched(odd: Sequence[Mismatch], ends: Sequence[Ending], place: Positions) -> Verdict | None:
    """A disagreement explains the stall unless a rank that waits nowhere holds up others than its members."""
    if not odd:
        return None
    first = odd[0]
    members = set(place.members[first.group])
    late = [end for end in ends if not end.nodes]
    if late and not members & (set(late[0].ranks) | late[0].blocked):
        return None
    node = ("coll", first.group, first.seq, -1)
    if first.odd:
        sure = len(first.signatures) > 2 * len(first.odd)
        return Verdict("mismatch", first.odd, (), "high" if sure else "medium", node, mismatch=first)
    return Verdict("mismatch", (), tuple(sorted(first.signatures)), "low", node, mismatch=first)


def _settled(
    flight: pl.DataFrame, place: Positions, ends: Sequence[Ending], blocking: Mapping[Node, Blockers]
) -> Verdict | None:
    """Late ranks and circles that the dumps of the ranks concerned show."""
    late = [end for end in ends if not end.nodes]
    cycles = circles(place.fronts, certain(blocking))
    if late and (not cycles or len(late[0].blocked) >= len(cycles[0].blocked)):
        ranks = tuple(sorted(rank for end in late for rank in end.ranks))
        node = _missed(place, set(ranks), certain(blocking))
        sure = _clearly_absent(place, ranks, node)
        return Verdict("late", ranks, (), "high" if sure else "medium", node)
    return circle(flight, place, cycles[0], certain(blocking)) if cycles else None


def _missed(place: Positions, ranks: set[int], blocking: Mapping[Node, frozenset[int]]) -> Node | None:
    """The call that misses most of *ranks*: a collective rather than a receive, then the longest wait."""
    nodes = [node for node, by in blocking.items() if by & ranks]
    most = max((len(blocking[node] & ranks) for node in nodes), default=0)
    best = [node for node in nodes if len(blocking[node] & ranks) == most]
    return earliest(place, [node for node in best if node[0] == "coll"] or best)


def _clearly_absent(place: Positions, ranks: Sequence[int], node: Node | None) -> bool:
    """Every culprit's dump shows that it did not come, and they are fewer than those who did."""
    if node is None or any(rank in place.wrapped and (rank, node[1]) not in place.reach for rank in ranks):
        return False
    return len(ranks) <= max(1, len(place.members.get(node[1], ())) // 2)


def _all_in(place: Positions, nodes: Sequence[Node]) -> Verdict | None:
    """Calls that everybody came to: done by some, not started by few, or in flight."""
    if not nodes:
        return None
    behind = {node: _behind(place, node) for node in nodes}
    stuck = [node for node in nodes if behind[node]]
    if stuck:
        ranks = tuple(sorted({rank for node in stuck for rank in behind[node]}))
        return Verdict("partly_done", ranks, (), "medium", earliest(place, stuck))
    for node in nodes:
        if idle := _not_begun(place, node):
            return Verdict("gpu_side", idle, (), "medium", node)
    first = earliest(place, nodes)
    return Verdict("in_flight", (), there(place, first) if first is not None else (), "medium", first)


def _behind(place: Positions, node: Node) -> tuple[int, ...]:
    """Members that have not completed what others have, when they are not the larger part."""
    kind, group, seq, _ = node
    present = there(place, node)
    if kind == "p2p" or _op(place, present) not in SYNCHRONISING:
        return ()
    done = [rank for rank in place.members[group] if place.state(rank, group, seq) == COMPLETED]
    return present if done and len(present) <= len(done) else ()


def _op(place: Positions, ranks: Sequence[int]) -> str:
    return str(place.front_rows.filter(pl.col("rank") == ranks[0])["op"][0])


def _not_begun(place: Positions, node: Node) -> tuple[int, ...]:
    """The few whose GPU has not come to a call that it has begun on the others: it is stuck in earlier work."""
    present = there(place, node)
    rows = place.front_rows.filter(pl.col("rank").is_in(list(present)))
    states = dict(rows.select("rank", "state").iter_rows())
    idle = tuple(rank for rank in present if states[rank] != STARTED)
    return idle if node[0] == "coll" and 2 * len(idle) <= len(present) else ()


def _stuck_gpu(place: Positions, blocking: Mapping[Node, Blockers]) -> Verdict | None:
    """As above where other members left no dump: they cannot be the reason that a GPU does not begin a call."""
    for node in sorted(blocking, key=lambda node: since(place).get(node, 0)):
        if not blocking[node].certain and (idle := _not_begun(place, node)):
            return Verdict("gpu_side", idle, (), "medium", node)
    return None


def _unlike(place: Positions, calls: pl.DataFrame, blocking: Mapping[Node, Blockers]) -> Verdict | None:
    """Members of a group whose others left no dump call what no sibling group calls, or are ahead of all of them."""
    for node, by in blocking.items():
        if node[0] != "coll" or by.certain or place.dumps.issuperset(place.members[node[1]]):
            continue
        odd = unlike_siblings(calls, node[1], node[2], place.desc)
        if odd is not None:
            return Verdict("mismatch", odd.odd, (), "low", node, mismatch=odd)
        usual = usual_count(place, node)
        missed = [other for other, ranks in blocking.items() if ranks.certain & set(there(place, node))]
        if usual is not None and usual < node[2] and missed:
            return Verdict("deadlock", there(place, node), (), "low", node)
    return None


def _silent(place: Positions, ends: Sequence[Ending], blocking: Mapping[Node, Blockers]) -> Verdict:
    """Only ranks without a dump (or whose ring lost the place) explain the stall."""
    unknown = {rank for end in ends if not end.nodes for rank in end.ranks}
    last = {node: by.all for node, by in blocking.items() if by.all and by.all <= unknown}
    shared = [rank for rank in sorted(unknown) if all(rank in ranks for ranks in last.values())]
    node = earliest(place, [node for node in last if node[0] == "coll"] or list(last))
    if len(shared) == 1:
        return Verdict("suspect_by_absence", tuple(shared), (), "medium", node)
    first = _missed_first(place, last)
    if first is not None:
        return Verdict("suspect_by_absence", (first,), tuple(sorted(unknown)), "low", node)
    return Verdict("undecided", (), tuple(shared) or tuple(sorted(unknown)), "low", node)


def _missed_first(place: Positions, last: Mapping[Node, frozenset[int]]) -> int | None:
    """The one unknown rank that others have missed longest, in collectives and then in sends; None when it is a tie."""
    began = since(place)
    waits_of: dict[int, list[int]] = {rank: [FOREVER_NS, FOREVER_NS] for ranks in last.values() for rank in ranks}
    for node, ranks in last.items():
        for rank in ranks if len(ranks) == 1 else ():
            kind = 0 if node[0] == "coll" else 1
            waits_of[rank][kind] = min(waits_of[rank][kind], began.get(node, FOREVER_NS))
    order = sorted(waits_of, key=lambda rank: waits_of[rank])
    if not order or waits_of[order[0]] == [FOREVER_NS, FOREVER_NS]:
        return None
    alone = len(order) == 1 or waits_of[order[0]] < waits_of[order[1]]
    return order[0] if alone else None
