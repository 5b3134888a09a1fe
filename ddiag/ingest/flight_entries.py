"""The entries of one dump as lists by key: what would cost a look-up per entry and use is looked up once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ddiag.ingest.flight_coalesced import COALESCED, one_per_call
from ddiag.ingest.flight_dump import Item, whole
from ddiag.model.naming import collective_op

_KEYS = (
    "profiling_name", "process_group", "pg_id", "is_p2p", "collective_seq_id", "p2p_seq_id", "seq_id", "op_id", "state",
    "retired", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "timeout_ms", "frames", "record_id",
    "time_created_ns", "time_created_us", "time_discovered_started_ns", "time_discovered_started_us",
    "time_discovered_completed_ns", "time_discovered_completed_us",
)  # fmt: skip
_PEERS = re.compile(r"(send|recv)\s+(\d{1,9})\s*(?:->|<-)\s*(\d{1,9})")


@dataclass(frozen=True)
class Call:
    """What ``profiling_name`` says: ``nccl:send 0->1``, ``xccl:all_reduce_barrier`` …"""

    op: str
    own: int | None = None
    """Group rank of the writer; of sends and receives only."""
    other: int | None = None

    @property
    def is_p2p(self) -> bool:
        return self.own is not None


class Entries:
    """Columns of entries, one per call."""

    def __init__(self, items: list[Item]) -> None:
        self._read(items)
        keys = list(zip(self.groups, self.p2p, self.seqs, strict=True))
        if len(set(keys)) < len(keys) or any(call.op == COALESCED for call in self.calls.values()):
            self._read(one_per_call(items, keys, self.p2p))

    def _read(self, items: list[Item]) -> None:
        self._columns = _columns(items)
        self.count = len(items)
        self.names: list[str] = list(map(str, self["profiling_name"]))
        self.groups = _one_life(_groups(self["process_group"], self["pg_id"]), self["pg_id"])
        self.calls = {name: call_of(name) for name in set(self.names)}
        ways = {name: call.is_p2p or call.op in ("send", "recv") for name, call in self.calls.items()}
        self.p2p = [said is True or ways[name] for said, name in zip(self["is_p2p"], self.names, strict=True)]
        self.seqs = _seqs(self.p2p, self["collective_seq_id"], self["p2p_seq_id"], self["seq_id"])

    def __getitem__(self, key: str) -> Sequence[Any]:
        """The values of *key*; None for entries without it."""
        return self._columns.get(key) or (None,) * self.count

    def integers(self, key: str) -> list[int]:
        """The whole numbers among the values of *key*."""
        return [number for value in self[key] if (number := value if type(value) is int else whole(value)) is not None]


def call_of(profiling_name: str) -> Call:
    """The operation in our words; ``barrier`` also where NCCL makes one of an all-reduce."""
    bare = profiling_name.split(":", 1)[-1]
    peers = _PEERS.search(bare)
    if peers is not None:
        return Call(peers.group(1), int(peers.group(2)), int(peers.group(3)))
    if bare.endswith("barrier"):
        return Call("barrier")
    known = collective_op(f"nccl:{bare}")
    return Call(bare if known in (None, "unknown") else known)


def _columns(items: list[Item]) -> dict[str, Sequence[Any]]:
    if not items:
        return {}
    present = [key for key in _KEYS if key in items[0]]
    try:
        rows = list(map(itemgetter(*present, "profiling_name"), items))
    except KeyError:
        return {key: [item.get(key) for item in items] for key in _KEYS}
    return dict(zip([*present, ""], zip(*rows, strict=True), strict=True))


def _groups(groups: Sequence[Any], numbers: Sequence[Any]) -> list[str]:
    """Names; before torch 2.4 the process's own number of the group."""
    try:
        return [group[0] if type(group[0]) is str else str(group[0]) for group in groups]
    except (TypeError, IndexError, KeyError):
        return [_group(group, number) for group, number in zip(groups, numbers, strict=True)]


def _one_life(names: list[str], numbers: Sequence[Any]) -> list[str]:
    """A name that was given again, after its first group was destroyed, means the newest of them; the sequence numbers
    of the others are another count, so they get a name of their own: ``5 (earlier: 3)``."""
    lives: dict[str, set[int]] = {}
    for name, number in _pairs(names, numbers):
        lives.setdefault(name, set()).add(number)
    if all(len(found) == 1 for found in lives.values()):
        return names
    newest = {name: max(found) for name, found in lives.items()}
    return [
        name if type(number) is not int or number == newest[name] else f"{name} (earlier: {number})"
        for name, number in zip(names, numbers, strict=True)
    ]


def _pairs(names: list[str], numbers: Sequence[Any]) -> list[tuple[str, int]]:
    """The different (name, number) among them; none when numbers are no numbers."""
    try:
        found = set(zip(names, numbers, strict=True))
    except TypeError:
        return []
    return [(name, number) for name, number in found if type(number) is int]


def _group(group: Any, number: Any) -> str:
    if isinstance(group, (list, tuple)) and group:
        return str(group[0])
    return group if isinstance(group, str) else str(0 if number is None else number)


def _seqs(p2p: list[bool], collectives: Sequence[Any], sends: Sequence[Any], old: Sequence[Any]) -> list[int | None]:
    chosen = [
        (send if is_p2p else collective) if (send if is_p2p else collective) is not None else before
        for is_p2p, collective, send, before in zip(p2p, collectives, sends, old, strict=True)
    ]
    return [seq if type(seq) is int else whole(seq) for seq in chosen]
