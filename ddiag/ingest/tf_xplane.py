"""Reads ``<host>.xplane.pb``, the profiler's own file (tsl/profiler/protobuf/xplane.proto): an XSpace of planes, each
with lines (threads, streams) of events, and with tables of the names that events refer to by number."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from ddiag.ingest.tf_events import NUMBERS, SCHEMA, TEXTS, Line, Profile
from ddiag.ingest.values import IntColumn
from ddiag.ingest.wire import LENGTH, Bytes, Fields, WireError, fields, top_level

_PLANES, _ERRORS, _WARNINGS = 1, 2, 3
_PLANE_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_START_NS, _EVENTS, _SHOWN_NAME = 1, 2, 3, 4, 11
_NAME_ID, _OFFSET_PS, _DURATION_PS, _STATS = 1, 2, 3, 4
_UINT64, _INT64, _STR, _BYTES, _REF = 3, 4, 5, 6, 7
_EPOCH_NS = 10**17
_PROFILE_START, _ENVIRONMENT = "profile_start_time", "Task Environment"
_RENAMED = {"Memset_details": "memset_details"}


@dataclass
class _Space:
    lines: list[Line] = field(default_factory=list)
    frames: list[pl.DataFrame] = field(default_factory=list)
    count: int = 0
    stats: dict[str, int | str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


def read_xplane(data: bytes) -> Profile:
    """The profile in *data*; raises :class:`WireError` when it is damaged or cut off."""
    space, view, array = _Space(), memoryview(data), np.frombuffer(data, dtype=np.uint8)
    for number, wire, length, at in top_level(view, 0, len(data)):
        if number == _PLANES and wire == LENGTH:
            _plane(space, view, array, at, at + length)
        elif number in (_ERRORS, _WARNINGS) and wire == LENGTH:
            space.messages.append(_text(view, at, length))
    events = pl.concat(space.frames) if space.frames else pl.DataFrame(schema=SCHEMA)
    return Profile(
        lines=space.lines,
        events=events,
        count=space.count,
        base_ns=_base(space, events),
        device_memory_bytes=_as_int(space.stats.get("memory_size")),
        device_vendor=_as_text(space.stats.get("device_vendor")),
        notes=tuple(f"the profiler says: {message[:200]}" for message in space.messages[:3]),
    )


def _base(space: _Space, events: pl.DataFrame) -> int | None:
    """When profiling began; none when the events carry Unix time themselves."""
    latest = events["end_ns"].max()
    began = _as_int(space.stats.get(_PROFILE_START))
    return began if isinstance(latest, int) and latest < _EPOCH_NS else None


def _as_int(value: int | str | None) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _as_text(value: int | str | None) -> str | None:
    return value if isinstance(value, str) and value else None


def _plane(space: _Space, view: memoryview, data: Bytes, start: int, end: int) -> None:
    name, lines, stats = "", [], []
    entries: dict[int, list[tuple[int, int]]] = {_EVENT_NAMES: [], _STAT_NAMES: []}
    for number, wire, length, at in top_level(view, start, end):
        if wire != LENGTH:
            continue
        if number == _PLANE_NAME:
            name = _text(view, at, length)
        elif number == _LINES:
            lines.append((at, at + length))
        elif number == _PLANE_STATS:
            stats.append((at, at + length))
        elif number in entries:
            entries[number].append((at, at + length))
    stat_names = _names(view, data, entries[_STAT_NAMES])
    if stats:
        found = _stats(view, data, *_bounds(stats), stat_names)
        for stat, of_plane in found.items():
            if name == _ENVIRONMENT or name.startswith("/device:GPU:"):
                space.stats.setdefault(stat, next(iter(of_plane.values())))
    if not lines or not name.startswith(("/host:", "/device:", "#Chip", "/custom:")):
        return
    event_names = _names(view, data, entries[_EVENT_NAMES])
    for at, stop in lines:
        _line(space, view, data, (at, stop), name, event_names, stat_names)


def _bounds(spans: list[tuple[int, int]]) -> tuple[IntColumn, IntColumn]:
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _text(view: memoryview, at: int, length: int) -> str:
    return bytes(view[at : at + length]).decode("utf-8", "replace")


def _names(view: memoryview, data: Bytes, entries: list[tuple[int, int]]) -> dict[int, str]:
    """Names by number, from the entries of a map whose values have the name as field 2."""
    if not entries:
        return {}
    pairs = fields(data, *_bounds(entries))
    keys = pairs.integers(1, len(entries))
    values = pairs.only(2)
    inner = fields(data, values.at, values.at + values.value).only(2)
    owner = values.message[inner.message]
    return {
        int(keys[entry]): _text(view, at, length)
        for entry, at, length in zip(owner.tolist(), inner.at.tolist(), inner.value.tolist(), strict=True)
    }


def _line(
    space: _Space,
    view: memoryview,
    data: Bytes,
    span: tuple[int, int],
    plane: str,
    event_names: dict[int, str],
    stat_names: dict[int, str],
) -> None:
    tid, began_ns, name, shown, spans = 0, 0, "", "", []
    for number, wire, value, at in top_level(view, *span):
        if number == _EVENTS and wire == LENGTH:
            spans.append((at, at + value))
        elif number == _LINE_ID:
            tid = value & 0xFFFFFFFF
        elif number == _LINE_START_NS:
            began_ns = value
        elif number == _LINE_NAME and wire == LENGTH:
            name = _text(view, at, value)
        elif number == _SHOWN_NAME and wire == LENGTH:
            shown = _text(view, at, value)
    space.lines.append(Line(plane, shown or name, tid))
    space.count += len(spans)
    if not spans:
        return
    found = fields(data, *_bounds(spans))
    starts = began_ns + np.rint(found.integers(_OFFSET_PS, len(spans)) / 1000).astype(np.int64)
    lengths = np.rint(found.integers(_DURATION_PS, len(spans)) / 1000).astype(np.int64)
    numbers = found.integers(_NAME_ID, len(spans))
    columns = {
        "line": np.full(len(spans), len(space.lines) - 1, dtype=np.int64),
        "name": pl.Series([event_names.get(code, "") for code in numbers.tolist()], dtype=pl.String),
        "start_ns": starts,
        "end_ns": starts + np.maximum(lengths, 0),
    }
    space.frames.append(pl.DataFrame(columns | _arguments(view, data, found, len(spans), stat_names), schema=SCHEMA))


def _arguments(
    view: memoryview, data: Bytes, found: Fields, count: int, stat_names: dict[int, str]
) -> dict[str, list[int | str | None]]:
    """The wanted arguments of *count* events as columns."""
    columns: dict[str, list[int | str | None]] = {name: [None] * count for name in (*NUMBERS, *TEXTS)}
    stats = found.only(_STATS)
    for stat, values in _stats(view, data, stats.at, stats.at + stats.value, stat_names).items():
        name = _RENAMED.get(stat, stat)
        if name not in columns:
            continue
        wanted = int if name in NUMBERS else str
        for row, value in values.items():
            if isinstance(value, wanted):
                columns[name][stats.message[row]] = value
    return columns


def _stats(
    view: memoryview, data: Bytes, starts: IntColumn, ends: IntColumn, stat_names: dict[int, str]
) -> dict[str, dict[int, int | str]]:
    """Values of the wanted stats by name and place; a reference stands for the name of another stat."""
    wanted = {*NUMBERS, *TEXTS, *_RENAMED, _PROFILE_START, "memory_size", "device_vendor"}
    every = fields(data, starts, ends)
    owners = every.integers(1, len(starts))
    keep = np.isin(owners, [code for code, name in stat_names.items() if name in wanted])
    values = every.only(_UINT64, _INT64, _STR, _BYTES, _REF)
    out: dict[str, dict[int, int | str]] = {}
    for row in np.flatnonzero(keep[values.message]).tolist():
        place, kind, value = int(values.message[row]), int(values.number[row]), int(values.value[row])
        if kind in (_STR, _BYTES):
            found: int | str = _text(view, int(values.at[row]), value)
        else:
            found = stat_names.get(value, "") if kind == _REF else value
        out.setdefault(stat_names[int(owners[place])], {})[place] = found
    return out


__all__ = ["WireError", "read_xplane"]
