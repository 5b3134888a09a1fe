"""The verdict from log lines alone: who printed that it waits, in what, and who printed nothing.

A rank that prints a watchdog line is normally a victim. A log is often an excerpt: a rank without a line is a suspect,
not a culprit, until something else says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from math import prod

from ddiag.analysis.hang.told import DEFAULT, DEFAULT_GROUPS, GLOO, Told, Wait
from ddiag.analysis.hang.verdict import Verdict
from ddiag.analysis.hang.vote import Mismatch, Signature, vote
from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events

_LEFT_OUT = re.compile(r"\[repeated \d+x across cluster\]")
"""Ray prints alike lines of many processes once: who seems silent may have been left out."""
FEW = 0.25
"""Up to this share of the ranks may be silent and still be named (one always may)."""


def conclude_logs(events: Events, log: Told) -> Verdict | None:
    """The verdict; None when no line says that a rank waits in a collective."""
    named = _named_by_torch(events, log) or _fingerprints(events, log)
    if named is not None:
        return named
    if not log.waits:
        return None
    odd = _mismatch(log)
    if odd is not None:
        return odd
    return (
        _sends_meet(log)
        or _late_by_status(log)
        or _subgroup(log)
        or _missing_members(log)
        or _crossed(log)
        or _silent(log)
    )


def _named_by_torch(events: Events, log: Told) -> Verdict | None:
    """What a desync report or a monitored barrier says outright."""
    barrier = events.first("c10d.monitored_barrier")
    if barrier is not None and (missing := _ranks(barrier, "missing")):
        return Verdict("barrier", missing, (), "high", None, frozenset(log.world) - set(missing))
    report = events.first("c10d.desync")
    if report is None:
        return None
    late = _ranks(report, "never_joined") or _ranks(report, "lagging")
    if not late:
        return None
    sure = len(late) * 2 <= len(log.world)
    return Verdict("late", late, (), "high" if sure else "medium", _place(log), log.waiting - set(late))


def _ranks(event: Event, field: str) -> tuple[int, ...]:
    found = event.get(field)
    return tuple(sorted({r for r in found if isinstance(r, int)})) if isinstance(found, list) else ()


def _fingerprints(events: Events, log: Told) -> Verdict | None:
    """DETAIL debugging compares pairs of ranks; over all pairs the majority is right."""
    signatures: dict[int, Signature] = {}
    seqs: dict[int, int] = {}
    for event in events.of("c10d.fingerprint_mismatch"):
        columns = [event.get(name) for name in ("ranks", "ops", "shapes", "dtypes", "seqs")]
        if all(isinstance(column, list) for column in columns):
            for rank, op, shape, dtype, seq in zip(*columns, strict=False):
                if isinstance(rank, int):
                    signatures[rank] = (str(op), _numel(str(shape or "")), str(dtype or ""))
                    seqs[rank] = seq if isinstance(seq, int) else -1
    if len(signatures) < 2 or len(set(signatures.values())) < 2:
        return None
    odd = vote(signatures)
    node = ("coll", DEFAULT, max(seqs.values()), -1)
    found = Mismatch(DEFAULT, node[2], odd, signatures, open=True)
    named = odd or (tuple(sorted(signatures)) if len(signatures) == 2 else ())
    sure = "high" if odd and len(signatures) > 2 * len(odd) else "medium"
    return Verdict("mismatch", named, () if odd else tuple(sorted(signatures)), sure, node, log.waiting, found)


def _numel(shape: str) -> int | None:
    """Elements of ``4, 1024``; None where no shape was printed."""
    sizes = [int(size) for size in shape.replace(" ", "").split(",") if size.isdigit()]
    return prod(sizes) if sizes else None


def _place(log: Told) -> tuple[str, str, int, int] | None:
    """Where most wait."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for wait in log.waits:
        counts[wait.group, wait.seq] += 1
    if not counts:
        return None
    group, seq = max(counts, key=lambda key: (counts[key], -key[1]))
    return ("coll", group, seq, -1)


def _mismatch(log: Told) -> Verdict | None:
    """Ranks of one group at one sequence number in different calls."""
    calls: dict[tuple[str, int], dict[int, Signature]] = defaultdict(dict)
    places: dict[tuple[str, int], set[int]] = defaultdict(set)
    for wait in log.waits:
        member = wait.event.integer("group_rank")
        if member is not None and member in places[wait.group, wait.seq]:
            return None  # one id, several groups: not comparable
        if member is not None:
            places[wait.group, wait.seq].add(member)
        calls[wait.group, wait.seq][wait.rank] = wait.signature
    for (group, seq), signatures in sorted(calls.items(), key=lambda item: item[0][1]):
        if len(set(signatures.values())) < 2:
            continue
        odd = vote(signatures)
        found = Mismatch(group, seq, odd, signatures, open=True)
        few = odd or tuple(sorted(signatures)) if len(signatures) == 2 else odd
        confidence = "high" if odd and len(signatures) > 2 * len(odd) else "medium"
        candidates = () if odd else tuple(sorted(signatures))
        node = ("coll", group, seq, -1)
        return Verdict("mismatch", few, candidates, confidence, node, log.waiting - set(few), found)
    return None


def _sends_meet(log: Told) -> Verdict | None:
    """Everybody waits in a send, or everybody in a receive: each waits for the other's counterpart."""
    ops = {wait.op for wait in log.waits}
    ranks = tuple(sorted(log.waiting))
    if ops not in ({"send"}, {"recv"}) or len(ranks) < 2 or any(wait.group == GLOO for wait in log.waits):
        return None
    sure = "high" if ops == {"send"} and len(ranks) == 2 else "medium"
    return Verdict("deadlock", ranks, ranks, sure, _place(log), log.waiting)


def _crossed(log: Told) -> Verdict | None:
    """Nobody is silent, several kinds of groups wait, and each agrees in itself: their order may be crossed."""
    seqs: dict[str, set[int]] = defaultdict(set)
    for wait in log.waits:
        seqs[wait.group].add(wait.seq)
    kinds = {wait.event.word("group_desc") or wait.group for wait in log.waits}
    whole = not log.silent and len(log.world) > 1
    if not whole or len(kinds) < 2 or any(len(numbers) > 1 for numbers in seqs.values()):
        return None
    return Verdict("deadlock", (), log.world, "low", _place(log), log.waiting)


def _late_by_status(log: Told) -> Verdict | None:
    """Ranks whose own status, or whose own wait, is behind the place where most of their group wait."""
    node = _place(log)
    if node is None:
        return None
    _, group, seq, _ = node
    ours = [wait for wait in log.waits if wait.group == group]
    said = {rank: enqueued for (rank, of), (enqueued, _) in log.status.items() if of == group and enqueued is not None}
    behind = {rank for rank, enqueued in said.items() if enqueued < seq} - {w.rank for w in ours if w.seq >= seq}
    if _same_counter(log):
        behind |= {wait.rank for wait in ours if wait.seq < seq}
    at = [wait for wait in ours if wait.seq == seq]
    if not behind or len(behind) >= len(at):
        return None
    late = tuple(sorted(behind))
    elsewhere = {wait.rank: wait.signature for wait in ours if wait.rank in behind}
    usual = at[0].signature
    if len(elsewhere) == len(late) and usual not in elsewhere.values():
        signatures = {**{wait.rank: wait.signature for wait in at}, **elsewhere}
        found = Mismatch(group, seq, late, signatures, open=True)
        return Verdict("mismatch", late, (), "medium", node, log.waiting - behind, found)
    return Verdict("late", late, (), "high" if len(late) == 1 else "medium", node, log.waiting - behind)


def _same_counter(log: Told) -> bool:
    """Sends, receives and coalesced calls have counters of their own."""
    return not any(wait.op in ("send", "recv", "coalesced") for wait in log.waits)


def _subgroup(log: Told) -> Verdict | None:
    """A group of known size where members are missing, while the other groups have all theirs."""
    by_group: dict[str, list[Wait]] = defaultdict(list)
    for wait in log.waits:
        by_group[wait.group].append(wait)
    short = [waits for waits in by_group.values() if (waits[0].size or 0) > len(waits)]
    if len(short) != 1 or len(by_group) < 2 or not log.silent:
        return None
    missing = (short[0][0].size or 0) - len(short[0])
    wait = short[0][0]
    node = ("coll", wait.group, wait.seq, -1)
    if missing == len(log.silent):
        return Verdict("late", log.silent, (), "medium", node, log.waiting)
    return Verdict("undecided", (), log.silent, "low", node, log.waiting)


def _missing_members(log: Told) -> Verdict | None:
    """Members of sub-groups that did not print, where group ranks tell who the members are.

    Ranks of a group are evenly spaced: two that printed with both their numbers show where the others lie.
    """
    by_group: dict[str, list[Wait]] = defaultdict(list)
    for wait in log.waits:
        if wait.group not in DEFAULT_GROUPS:
            by_group[wait.group].append(wait)
    missing: dict[int, Wait] = {}
    for waits in by_group.values():
        there = {wait.rank for wait in waits}
        for rank in _members(waits):
            if rank not in there and rank in log.silent:
                missing.setdefault(rank, waits[0])
    if not missing:
        return None
    ranks = tuple(sorted(missing))
    wait = missing[ranks[0]]
    node = ("coll", wait.group, wait.seq, -1)
    if len(ranks) > max(1, len(log.waiting) // 2):
        return Verdict("undecided", (), ranks, "low", node, log.waiting)
    return Verdict("suspect_by_absence", ranks, (), "medium", node, log.waiting)


def _members(waits: list[Wait]) -> list[int]:
    """Global ranks of a group, from the pairs of group rank and global rank; empty when they do not tell."""
    pairs = sorted({(at, wait.rank) for wait in waits if (at := wait.event.integer("group_rank")) is not None})
    if len(pairs) < 2 or len({at for at, _ in pairs}) < len(pairs):
        return []
    (first, rank), (second, other) = pairs[0], pairs[-1]
    stride, rest = divmod(other - rank, second - first)
    base = rank - stride * first
    if rest or stride < 1 or base < 0 or any(base + stride * at != of for at, of in pairs):
        return []
    return [base + stride * at for at in range(max(waits[0].size or 0, second + 1))]


def _there_by_status(rank: int, node: tuple[str, str, int, int] | None, log: Told) -> bool:
    """Its own counts say that it has enqueued the call and not completed it, though it printed no time-out."""
    enqueued, completed = log.status.get((rank, node[1]), (None, None)) if node is not None else (None, None)
    return node is not None and enqueued is not None and completed is not None and completed < node[2] <= enqueued


def _silent(log: Told) -> Verdict:
    """Everybody who printed waits in the same place: those who did not print are suspects."""
    node = _place(log)
    silent = tuple(rank for rank in log.silent if not _there_by_status(rank, node, log))
    if silent and any(_LEFT_OUT.search(wait.event.text) for wait in log.waits):
        return Verdict("undecided", (), silent, "low", node, log.waiting)
    if log.healthy_counts or not silent:
        return Verdict("in_flight", (), log.world if not silent else (), "low", node, log.waiting)
    if len(silent) == 1 or len(silent) <= FEW * len(log.world):
        return Verdict("suspect_by_absence", silent, (), "medium", node, log.waiting)
    return Verdict("undecided", (), silent if len(silent) < len(log.world) else (), "low", node, log.waiting)
