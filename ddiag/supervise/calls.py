"""How far one rank came in each process group, from its rings: read without its help, at any moment."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddiag.errors import InputError
from ddiag.schema import names as names_layout
from ddiag.schema.folder import ProcessFiles
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import NO_DTYPE, Record, RingHeader, unpack_header, unpack_records

NEWEST = 12
"""Calls of a group that are told even when they are over."""
MOST_UNFINISHED = 64
_POINT_TO_POINT = (Op.SEND, Op.RECV)
_WHOLE_TIERS = ("native", "hooks")
_OPS = {int(op): op.name.lower() for op in Op}
PHASES = {int(phase): phase.name.lower() for phase in Phase}


@dataclass(frozen=True)
class Group:
    """A process group as its member described it."""

    name: str
    desc: str = ""
    backend: str = ""
    ranks: tuple[int, ...] = ()


@dataclass
class Facts:
    """What a rank wrote down about itself, as far as it is needed here."""

    groups: dict[int, Group] = field(default_factory=dict)
    """By the id its records use."""
    tier: str = ""
    stack_signal: int = 0
    """The signal on which it writes its stacks into ``stack_file``; 0 for none."""
    stack_file: str = ""


def read_facts(path: Path) -> Facts:
    found = Facts()
    for line in _text(path).splitlines():
        try:
            fact = json.loads(line)
        except ValueError:
            continue  # the last line may be cut short
        if not isinstance(fact, dict):
            continue
        if fact.get("kind") == "group":
            ranks = tuple(int(rank) for rank in fact.get("ranks", ()))
            name, desc, backend = (str(fact.get(key, "")) for key in ("name", "desc", "backend"))
            found.groups[int(fact.get("id", -1))] = Group(name, desc, backend, ranks)
        elif fact.get("kind") == "tier":
            found.tier = str(fact.get("tier", ""))
        elif fact.get("kind") == "stack_signal":
            found.stack_signal, found.stack_file = int(fact.get("signal", 0)), str(fact.get("file", ""))
    return found


def read_calls(files: ProcessFiles, facts: Facts, *, step: int) -> list[dict[str, Any]]:
    """``groups`` of a capture for the rank that is in *step*."""
    header, records = _records(files)
    if header is None:
        return []
    texts = names_layout.decode(_bytes(files.names))
    by_group: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record.kind == Kind.COLLECTIVE and record.op != Op.WAIT:
            by_group[record.group].append(record)
    known = facts.tier in _WHOLE_TIERS or _looked_lately(by_group, step)
    for number in facts.groups:
        by_group.setdefault(number, [])
    return [
        {**_group(facts.groups.get(number) or Group(_name(texts, number)), calls, header, texts), "known": known}
        for number, calls in by_group.items()
    ]


def _looked_lately(by_group: dict[int, list[Record]], step: int) -> bool:
    """A tier that sees a share of the steps only saw this one or the one before: else nothing is known of today."""
    newest = max((record.step for calls in by_group.values() for record in calls), default=-1)
    return newest >= step - 1


def _records(files: ProcessFiles) -> tuple[RingHeader | None, list[Record]]:
    header, found = None, []
    for path in (files.ring, files.native_ring):
        data = _bytes(path)
        try:
            header = unpack_header(data, source=str(path))
        except InputError:
            continue
        found += unpack_records(data, header.capacity, again=_bytes(path))
    return header, sorted(found, key=lambda record: record.enqueue_ns)


def _group(group: Group, calls: list[Record], header: RingHeader, texts: list[str]) -> dict[str, Any]:
    collective = [one for one in calls if one.op not in _POINT_TO_POINT]
    numbered = [one.seq for one in collective if one.seq > 0]
    told = [one for one in calls if one.state < State.DONE and not one.flags & Flag.END_UNKNOWN][-MOST_UNFINISHED:]
    kept = {(one.enqueue_ns, one.index): one for one in (*told, *calls[-NEWEST:])}
    return {
        "name": group.name,
        "desc": group.desc,
        "backend": group.backend,
        "ranks": list(group.ranks),
        "last_enqueued": max(numbered, default=None),
        "last_completed": _last_completed(collective),
        "cut": len(kept) < len(calls) or (calls[:1] != [] and calls[0].seq > 1),
        "calls": [_call(one, group, header, texts) for _, one in sorted(kept.items())],
    }


def _last_completed(calls: list[Record]) -> int | None:
    """The last one up to which all are over; None where nobody sees the ends."""
    if any(one.flags & Flag.END_UNKNOWN or one.seq <= 0 for one in calls):
        return None
    unfinished = [one.seq for one in calls if one.state != State.DONE]
    known = [one.seq for one in calls]
    if not unfinished:
        return max(known, default=None)
    return min(unfinished) - 1


def _call(one: Record, group: Group, header: RingHeader, texts: list[str]) -> dict[str, Any]:
    return {
        "op": _OPS.get(one.op, "unknown"),
        "seq": one.seq,
        "state": State(one.state).name.lower(),
        "enqueue_ns": header.wall(one.enqueue_ns),
        "end_ns": header.wall(one.end_ns) if one.end_ns and one.state >= State.DONE else None,
        "bytes_in": one.bytes_in,
        "bytes_out": one.bytes_out,
        "dtype": None if one.dtype == NO_DTYPE else _name(texts, one.dtype),
        "peer": group.ranks[one.peer] if 0 <= one.peer < len(group.ranks) else None,
        "label": _name(texts, one.label) or None,
        "step": one.step,
        "phase": PHASES.get(one.phase, ""),
        "end_unknown": _end_unknown(one),
    }


def _end_unknown(one: Record) -> bool:
    """Nobody tells when it is over; of an asynchronous call without a future, only who waits for it does."""
    seen_by_waiting = Flag.END_IS_WAIT | Flag.ASYNC
    return bool(one.flags & Flag.END_UNKNOWN) or (
        one.flags & seen_by_waiting == seen_by_waiting and one.state < State.DONE
    )


def _name(texts: list[str], number: int) -> str:
    return texts[number] if 0 <= number < len(texts) else ""


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")
