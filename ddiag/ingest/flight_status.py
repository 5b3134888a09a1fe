"""How far a rank came in each of its groups, from its Flight Recorder dump.

torch's own ``pg_status`` counts collectives and sends together and knows groups by a number of the process. So where a
group has sends, and wherever entries say more, the entries decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from ddiag.ingest.flight_dump import Dump
from ddiag.ingest.flight_entries import Entries

NONE_YET = -1


@dataclass(frozen=True)
class _Seen:
    """What the entries of one group say, in collective sequence numbers."""

    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    oldest: int | None = None
    has_p2p: bool = False


def status_rows(dump: Dump, entries: Entries, flight: pl.DataFrame) -> list[dict[str, object]]:
    """Rows of ``flight_status`` for the groups of *dump*, without rank, host and source."""
    seen = _from_entries(entries, flight)
    numbers = _group_numbers(dump, entries)
    wrapped = _wrapped(entries)
    names = dict.fromkeys([*dump.groups, *seen])
    return [_row(dump, entries, name, seen.get(name), numbers, wrapped=wrapped) for name in names]


def _row(
    dump: Dump, entries: Entries, name: str, seen: _Seen | None, numbers: Mapping[str, str], *, wrapped: bool
) -> dict[str, object]:
    known = dump.groups.get(name)
    enqueued, started, completed = _best(dump, name, seen or _Seen(), numbers)
    if seen is None and dump.entries and not wrapped and not dump.damage:
        enqueued = started = completed = NONE_YET
    oldest = seen.oldest if seen is not None else None
    if wrapped and oldest is None and enqueued is not None and enqueued >= 0:
        oldest = enqueued + 1
    return {
        "group": name,
        "desc": _desc(dump, entries, name),
        "ranks": None if known is None or known.ranks is None else list(known.ranks),
        "last_enqueued": enqueued,
        "last_started": started,
        "last_completed": completed,
        "oldest_kept": oldest if wrapped else None,
        "origin": "flight",
    }


def _best(dump: Dump, name: str, seen: _Seen, numbers: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """(enqueued, started, completed): torch's own count raised by what the entries show.

    Starts are tracked only with ``TORCH_NCCL_ENABLE_TIMING``; the newest entries of a dump that is cut off are lost.
    """
    own = dump.status.get(numbers.get(name, ""))
    if own is None or seen.has_p2p:
        return (None, None, None) if dump.damage else (seen.enqueued, seen.started, seen.completed)
    enqueued, started, completed = own
    untracked = started == NONE_YET and enqueued is not None and enqueued > NONE_YET
    return (
        _highest(enqueued, seen.enqueued),
        _highest(None if untracked else started, seen.started),
        _highest(completed, seen.completed),
    )


def _highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _from_entries(entries: Entries, flight: pl.DataFrame) -> dict[str, _Seen]:
    """By group. Sends carry the number of the collective before them, so they too say what was enqueued."""
    coll = pl.col("call") == "coll"
    done = coll & (pl.col("state") == "completed")
    timed = flight["started_ns"].is_not_null().any() or (flight["state"] == "started").any()
    found = flight.group_by("group").agg(
        pl.col("seq").filter(coll).max().alias("enqueued"),
        pl.col("seq").filter(coll).min().alias("oldest"),
        pl.col("seq").filter(coll & pl.col("state").is_in(["started", "completed"])).max().alias("started"),
        pl.col("seq").filter(done).max().alias("completed"),
        pl.col("seq").filter(coll & (pl.col("state") != "completed")).min().alias("pending"),
        (pl.col("call") == "p2p").any().alias("has_p2p"),
    )
    before = _before_sends(entries)
    return {row["group"]: _seen(row, before.get(row["group"]), timed=bool(timed)) for row in found.to_dicts()}


def _seen(row: Mapping[str, int | None], before: int | None, *, timed: bool) -> _Seen:
    enqueued = _highest(row["enqueued"], before)
    completed = row["completed"]
    if row["pending"] is None:
        completed = enqueued
    elif completed is None:
        completed = row["pending"] - 1 if before is None else None
    started = _highest(row["started"], completed) if timed else None
    return _Seen(enqueued, started, completed, row["oldest"], bool(row["has_p2p"]))


def _before_sends(entries: Entries) -> dict[str, int]:
    """By group: the last collective before its sends and receives; nothing before torch 2.4, and nothing for 0."""
    last: dict[str, int] = {}
    if True in entries.p2p:
        for name, is_p2p, seq in zip(entries.groups, entries.p2p, entries["collective_seq_id"], strict=True):
            if is_p2p and isinstance(seq, int) and seq > 0:
                last[name] = max(seq, last.get(name, 0))
    return last


def _group_numbers(dump: Dump, entries: Entries) -> dict[str, str]:
    """Group name -> the process's number of it, from entries; the others in the order of creation, if that fits.

    Names that count up were given in the order of creation, and so were the numbers.
    """
    pairs = set(zip(entries.groups, map(str, entries["pg_id"]), strict=True))
    found = {name: number for name, number in pairs if number != "None"}
    if len(dump.groups) == len(dump.status) and all(name.isdigit() for name in [*dump.groups, *dump.status]):
        ordered = dict(zip(sorted(dump.groups, key=int), sorted(dump.status, key=int), strict=True))
        if all(ordered.get(name) == number for name, number in found.items()):
            return ordered
    if "0" in dump.groups and "0" in dump.status:
        found.setdefault("0", "0")
    return found


def _wrapped(entries: Entries) -> bool:
    """The oldest entries were overwritten (or left out of a dump of active ones)."""
    records = entries.integers("record_id")
    if records:
        return min(records) > 0
    return min(entries.integers("seq_id"), default=0) > 1


def _desc(dump: Dump, entries: Entries, name: str) -> str:
    known = dump.groups.get(name)
    if known is not None and known.desc:
        return known.desc
    group = entries["process_group"][entries.groups.index(name)] if name in entries.groups else None
    if isinstance(group, (list, tuple)) and len(group) > 1:
        return str(group[1])
    return "default_pg" if name == "0" else ""
