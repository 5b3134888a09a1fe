"""NCCL Inspector's files: one JSON object per completed collective or send, of one process each.

There may be millions of calls, so they become one event for each communicator, operation and size.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.flight_dump import Item, whole
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.tolerant import DECODE_ERRORS
from ddiag.ingest.trace import UnusableError
from ddiag.model.incident import EPOCH, Event, Value
from ddiag.model.naming import collective_op

NAME = "nccl_inspector"
_KEYS = re.compile(rb'"(?:coll_perf|p2p_perf)"\s*:')
_KINDS = (("coll_perf", "coll"), ("p2p_perf", "p2p"))
_READ_BYTES = 4 << 20
_decode = msgspec.json.Decoder().decode


@dataclass
class _Calls:
    """Calls of one communicator, operation and size."""

    seqs: list[int] = field(default_factory=list)
    microseconds: list[float] = field(default_factory=list)
    busbw_gbs: list[float] = field(default_factory=list)
    timing: str = ""
    last_us: int = 0


@dataclass(frozen=True)
class _Key:
    comm: str
    group_rank: int | None
    n_ranks: int | None
    nodes: int | None
    host: str
    pid: int | None
    op: str
    bytes: int | None


def matches(head: bytes, name: str) -> bool:
    """JSON with the keys only Inspector writes."""
    return head.lstrip()[:1] == b"{" and _KEYS.search(head) is not None


def read(source: Source, text: PlainText) -> Clues:
    """Raises UnusableError when there is no call in it."""
    groups: dict[_Key, _Calls] = defaultdict(_Calls)
    read, dropped = 0, 0
    for item in _objects(text):
        read += 1
        dropped += not _taken(item, groups)
    if not groups:
        raise UnusableError(text.damage or "NCCL Inspector's output without a completed call")
    rank = _rank(groups)
    hosts = {key.host for key in groups if key.host}
    events = [_event(key, calls, rank, source.label) for key, calls in groups.items()]
    notes = (text.damage,) if text.damage else ()
    host = hosts.pop() if len(hosts) == 1 else None
    return Clues(source, NAME, to_tables(events), rank, host, read=read, dropped=dropped, notes=notes)


def _objects(text: PlainText) -> Iterator[Any]:
    """One for each line; None for one that is no JSON."""
    rest = b""
    while chunk := text.read(_READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from _decoded(lines)
    yield from _decoded([rest])


def _decoded(lines: Iterable[bytes]) -> Iterator[Any]:
    for line in lines:
        if line.strip():
            try:
                yield _decode(line)
            except DECODE_ERRORS:
                yield None


def _taken(item: Any, groups: dict[_Key, _Calls]) -> bool:
    """Whether *item* is a completed call; it is added to its group."""
    if not isinstance(item, dict):
        return False
    head, about = _mapping(item.get("header"), item), _mapping(item.get("metadata"), item)
    for kind, prefix in _KINDS:
        perf = item.get(kind)
        if not isinstance(perf, dict):
            continue
        name = str(perf.get(prefix, ""))
        key = _Key(
            str(head.get("id", "")).removeprefix("0x"), whole(head.get("rank")), whole(head.get("n_ranks")),
            whole(head.get("nnodes")), str(about.get("hostname", "")), whole(about.get("pid")),
            collective_op(name) or name, whole(perf.get(f"{prefix}_msg_size_bytes")),
        )  # fmt: skip
        calls = groups[key]
        calls.seqs.append(whole(perf.get(f"{prefix}_sn")) or 0)
        calls.microseconds.append(_number(perf.get(f"{prefix}_exec_time_us")))
        calls.busbw_gbs.append(_number(perf.get(f"{prefix}_busbw_gbs")))
        calls.timing = str(perf.get(f"{prefix}_timing_source", calls.timing))
        calls.last_us = max(calls.last_us, whole(about.get("dump_timestamp_us")) or 0)
        return True
    return False


def _event(key: _Key, calls: _Calls, rank: int | None, label: str) -> Event:
    fields: dict[str, Value] = {
        "comm": key.comm, "group_rank": key.group_rank, "n_ranks": key.n_ranks, "nodes": key.nodes, "op": key.op,
        "bytes": key.bytes, "calls": len(calls.seqs), "first_seq": min(calls.seqs), "last_seq": max(calls.seqs),
        "median_us": median(calls.microseconds), "worst_us": max(calls.microseconds),
        "median_busbw_gbs": median(calls.busbw_gbs), "timing": calls.timing, "pid": key.pid,
    }  # fmt: skip
    when = calls.last_us * 1000 or None
    return Event("inspector.calls", fields, rank, key.host or None, when, EPOCH if when else "", source=label)


def _rank(groups: Iterable[_Key]) -> int | None:
    """Rank in the largest communicator of the process, which is the job's; None when there are several processes."""
    keys = list(groups)
    largest = max((key.n_ranks or 0 for key in keys), default=0)
    ranks = {key.group_rank for key in keys if key.n_ranks == largest}
    return ranks.pop() if len(ranks) == 1 and len({(key.host, key.pid) for key in keys}) == 1 else None


def _mapping(found: Any, otherwise: Item) -> Mapping[str, Any]:
    """Older output has the header's fields at the top."""
    return found if isinstance(found, dict) else otherwise


def _number(found: Any) -> float:
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else 0.0
