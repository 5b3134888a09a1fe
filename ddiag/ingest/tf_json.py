"""Reads ``<host>.trace.json.gz``, the trace viewer's copy of a profile: Chrome trace events, pid = plane, tid = line.

Where an event has a short name to show, the viewer puts the full one under ``long_name``. It keeps one million events,
the earliest; the rest of a longer profile is only in the xplane.pb beside it.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct, field

from ddiag.ingest.sources import PlainText
from ddiag.ingest.stream import EventStream
from ddiag.ingest.tf_events import NUMBERS, SCHEMA, TEXTS, Line, Profile
from ddiag.ingest.tolerant import DECODE_ERRORS, decode_each
from ddiag.ingest.trace import UnusableError
from ddiag.ingest.values import BAD_TIME, Clock, ints

VIEWER_LIMIT = 1_000_000
"""``kTraceViewerMaxEvents`` of the profiler that writes these files."""
_Word = str | int | float | None


class _Args(Struct, gc=False):
    name: _Word = None
    long_name: _Word = None
    step_num: _Word = None
    correlation_id: _Word = None
    group_key: _Word = None
    group_size: _Word = None
    instance_key: _Word = None
    id: _Word = None
    step_id: _Word = None
    allocation_bytes: _Word = None
    bytes_allocated: _Word = None
    device: _Word = None
    memcpy_details: _Word = None
    memset_details: _Word = field(name="Memset_details", default=None)
    allocator_name: _Word = None


class _Event(Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: _Word = None
    tid: _Word = None
    ts: _Word = None
    dur: _Word = None
    args: _Args | None = None


_ARRAY = msgspec.json.Decoder(list[_Event])
_ONE = msgspec.json.Decoder(_Event)
_NO_ARGS = _Args()
_WANTED = attrgetter(*NUMBERS, *TEXTS)


class _Codec:
    """How :class:`EventStream` decodes these events."""

    def __call__(self, array: bytes | memoryview) -> list[Any]:
        return list(_ARRAY.decode(array))

    def tolerantly(self, items: bytes) -> tuple[list[Any], int]:
        return decode_each(items, _one)


def _one(text: bytes) -> _Event | None:
    try:
        return _ONE.decode(text)
    except DECODE_ERRORS:
        return None


class _Reading:
    def __init__(self) -> None:
        self.clock = Clock()
        self.frames: list[pl.DataFrame] = []
        self.keys: dict[tuple[_Word, _Word], int] = {}
        self.processes: dict[_Word, str] = {}
        self.threads: dict[tuple[_Word, _Word], str] = {}
        self.count = self.dropped = 0

    def add(self, events: list[_Event]) -> None:
        spans = []
        for event in events:
            if event.ph in ("X", "i", "I"):
                spans.append(event)
            elif event.ph == "M" and event.args is not None:
                self._named(event, str(event.args.name or ""))
        self.count += len(spans)
        if spans:
            self._spans(spans)

    def _named(self, event: _Event, name: str) -> None:
        if event.name == "process_name":
            self.processes[event.pid] = name
        elif event.name == "thread_name":
            self.threads[event.pid, event.tid] = name

    def _spans(self, spans: list[_Event]) -> None:
        starts, ends = self.clock.spans([event.ts for event in spans], [event.dur or 0 for event in spans])
        args = [event.args or _NO_ARGS for event in spans]
        keys = [(event.pid, event.tid) for event in spans]
        columns: dict[str, Any] = {
            "line": [self.keys.setdefault(key, len(self.keys)) for key in keys],
            "name": [str(arg.long_name or event.name) for event, arg in zip(spans, args, strict=True)],
            "start_ns": starts,
            "end_ns": ends,
        }
        values = zip((*NUMBERS, *TEXTS), zip(*map(_WANTED, args), strict=True), strict=True)
        columns |= {name: (_integers if name in NUMBERS else _words)(column) for name, column in values}
        frame = pl.DataFrame(columns, schema=SCHEMA).filter(pl.col("start_ns") != BAD_TIME)
        self.dropped += len(spans) - frame.height
        self.frames.append(frame)


_ABSENT = int(np.iinfo(np.int64).min)


def _integers(values: tuple[_Word, ...]) -> pl.Series:
    if values.count(None) == len(values):
        return pl.Series(values, dtype=pl.Int64)
    found = pl.Series(ints(values, _ABSENT))
    return found.set(found == _ABSENT, None)


def _words(values: tuple[_Word, ...]) -> pl.Series:
    if values.count(None) == len(values):
        return pl.Series(values, dtype=pl.String)
    return pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)


def read_json(text: PlainText) -> Profile:
    """The profile in *text*."""
    stream = EventStream(text, _Codec())
    if not stream.has_events:
        raise UnusableError("no traceEvents in it")
    reading = _Reading()
    for events in stream:
        reading.add(events)  # type: ignore[arg-type]
    return Profile(
        lines=_lines(reading),
        events=pl.concat(reading.frames) if reading.frames else pl.DataFrame(schema=SCHEMA),
        count=reading.count,
        dropped=reading.dropped + stream.dropped,
        truncated=stream.truncated or bool(text.damage),
        notes=_notes(reading, stream, text),
    )


def _lines(reading: _Reading) -> list[Line]:
    """The lines events are on; planes of several hosts in one file cannot be told apart later, so they are refused."""
    by_host: dict[str, list[str]] = defaultdict(list)
    planes = {}
    for pid, process in reading.processes.items():
        host, _, plane = process.rpartition(" ") if " /" in process else ("", "", process)
        planes[pid] = plane
        by_host[host].append(plane)
    if len(by_host) > 1:
        raise UnusableError(
            f"holds {len(by_host)} hosts in one trace ({', '.join(sorted(by_host)[:3])} …): "
            "give the xplane.pb or trace.json.gz of each host"
        )
    return [
        Line(planes.get(pid, ""), reading.threads.get((pid, tid), ""), int(ints([tid])[0])) for pid, tid in reading.keys
    ]


def _notes(reading: _Reading, stream: EventStream, text: PlainText) -> tuple[str, ...]:
    notes = [text.damage] if text.damage else []
    if stream.truncated:
        notes.append(
            f"ends before its JSON does (killed while writing?): {reading.count:,} events up to the cut are used"
        )
    if reading.count >= VIEWER_LIMIT:
        notes.append(
            f"holds {reading.count:,} events: TensorFlow's trace viewer keeps at most {VIEWER_LIMIT:,}, the earliest; "
            "give the xplane.pb beside it for all of them"
        )
    dropped = reading.dropped + stream.dropped
    if dropped:
        notes.append(f"{dropped:,} of {reading.count + stream.dropped:,} events could not be understood")
    return tuple(notes)
