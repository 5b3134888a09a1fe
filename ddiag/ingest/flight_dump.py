"""One Flight Recorder dump as torch 2.2 to 2.14 write it, pickle or JSON, in one shape.

torch 2.2 pickles a bare list; 2.3 adds a version, 2.4 names and members of groups, 2.5 their status. Versions compare
as tuples: "2.10" is later than "2.9".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ddiag.ingest.flight_json import json_objects
from ddiag.ingest.flight_pickle import plain_objects
from ddiag.ingest.trace import OtherFileError, UnusableError

PICKLE = re.compile(rb"\x80[\x02-\x05]")
_NUMBER = re.compile(r"-?\d{1,18}")
_TOP_KEYS = ("pg_config", "pg_status", "nccl_comm_state")
_OTHERS = (
    ("segments", "a CUDA memory snapshot (torch.cuda.memory._dump_snapshot)"),
    ("device_traces", "a CUDA memory snapshot (torch.cuda.memory._dump_snapshot)"),
    ("state_dict", "a checkpoint"),
    ("model", "a checkpoint"),
    ("optimizer", "a checkpoint"),
)
Item = Mapping[str, Any]


@dataclass(frozen=True)
class DumpGroup:
    """A process group as this rank knows it."""

    name: str
    desc: str
    ranks: tuple[int, ...] | None
    """Members in the order of their group ranks; None when the dump does not say."""


@dataclass(frozen=True)
class Dump:
    """What one rank recorded."""

    version: tuple[int, ...]
    entries: list[Item]
    groups: Mapping[str, DumpGroup] = field(default_factory=dict)
    status: Mapping[str, tuple[int | None, int | None, int | None]] = field(default_factory=dict)
    """By the process's own number of the group: last enqueued, started, completed (collectives and sends alike)."""
    rank: int | None = None
    """Where the dump itself says it; torch's own never do."""
    communicators: tuple[Item, ...] = ()
    """What NCCL says of its communicators: rank, nranks …"""
    damage: str = ""
    dropped: int = 0


def dump_of(data: bytes, damage: str = "") -> Dump:
    """The dump that *data* holds. Raises UnusableError, with one line, for anything else."""
    plain = plain_objects(data) if PICKLE.match(data) else json_objects(data, damage)
    found, why = plain.value, damage or plain.damage
    if isinstance(found, list):
        found = {"entries": found}
    if not isinstance(found, dict):
        raise OtherFileError(why or f"holds a {type(found).__name__}, not a Flight Recorder dump")
    _refuse_others(found, why)
    entries, dropped = _entries(found.get("entries"))
    if dropped and not (entries or why):
        raise OtherFileError("a list without Flight Recorder entries")
    if why and entries and not _is_whole(entries[-1], entries[0]):
        entries, dropped = entries[:-1], dropped + 1
    if not entries and not any(isinstance(found.get(key), dict) for key in _TOP_KEYS):
        raise UnusableError(why or "no entries and no process groups: not a Flight Recorder dump")
    return Dump(
        version=tuple(map(int, _NUMBER.findall(str(found.get("version", ""))))),
        entries=entries,
        groups=_groups(found.get("pg_config")),
        status=_status(found.get("pg_status")),
        rank=whole(found.get("rank", found.get("global_rank"))),
        communicators=tuple(one for one in _values(found.get("nccl_comm_state")) if isinstance(one, dict)),
        damage=why,
        dropped=dropped,
    )


def whole(value: Any) -> int | None:
    """An integer, also when it is spelled as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value.strip()) else None


def members(value: Any) -> tuple[int, ...] | None:
    """Ranks from ``"[0, 1, 2]"`` or a list of numbers or numerals; None when empty or unreadable."""
    if isinstance(value, str):
        found = _printed(value)
    elif isinstance(value, (list, tuple)):
        found = tuple(rank for one in value if (rank := whole(one)) is not None)
    else:
        return None
    return found or None


@lru_cache(maxsize=256)
def _printed(ranks: str) -> tuple[int, ...]:
    """The members of big groups are the same thousands of numbers in every rank's dump."""
    return tuple(map(int, _NUMBER.findall(ranks)))


def _refuse_others(found: dict[Any, Any], why: str) -> None:
    if "entries" in found or any(key in found for key in _TOP_KEYS):
        return
    for key, what in _OTHERS:
        if key in found:
            raise OtherFileError(f"{what}, not a Flight Recorder dump")
    keys = ", ".join(sorted(str(key)[:40] for key in found)[:4])
    raise OtherFileError(why or f"no list of entries (keys: {keys or 'none'}): not a Flight Recorder dump")


def _entries(found: Any) -> tuple[list[Item], int]:
    """The entries, and how many are none."""
    if not isinstance(found, (list, tuple)):
        return [], 0
    kept: list[Item] = [one for one in found if isinstance(one, dict) and "profiling_name" in one]
    return kept, len(found) - len(kept)


def _is_whole(entry: Item, first: Item) -> bool:
    """Where a dump is cut off, its last entry may lack what would say that it completed."""
    return {"state", "retired"} <= entry.keys() and first.keys() <= entry.keys()


def _groups(found: Any) -> dict[str, DumpGroup]:
    groups = {}
    for key, one in found.items() if isinstance(found, dict) else ():
        about = one if isinstance(one, dict) else {"ranks": one}
        ranks = members(about.get("ranks"))
        name = str(about.get("name") or key)
        if name or ranks:
            groups[name] = DumpGroup(name, str(about.get("desc", "")), ranks)
    return groups


def _status(found: Any) -> dict[str, tuple[int | None, int | None, int | None]]:
    words = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {
        str(key): (whole(one.get(words[0])), whole(one.get(words[1])), whole(one.get(words[2])))
        for key, one in (found.items() if isinstance(found, dict) else ())
        if isinstance(one, dict)
    }


def _values(found: Any) -> Iterable[Any]:
    return found.values() if isinstance(found, dict) else ()
