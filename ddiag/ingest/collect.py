"""Events of one trace into columns, chunk by chunk: only numbers and codes of interned text outlive a chunk."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from ddiag.ingest import events as ev
from ddiag.ingest.calls import CallMeta, describe
from ddiag.ingest.categories import Family, device_kind, family
from ddiag.ingest.values import BAD_TIME, Clock, Codes, IntColumn, ints, to_int

NO_ARGS = ev.Args()
Spans = list[Any]
Handler = Callable[[Spans], None]

OP_KINDS = ("op", "annotation", "python", "gpu_annotation")
_OP_FAMILIES = {
    Family.OP: 0,
    Family.OLD_OP: 0,
    Family.ANNOTATION: 1,
    Family.PYTHON: 2,
    Family.GPU_ANNOTATION: 3,
}


class _Groups(dict[Any, Callable[[Any], None]]):
    """Events by category: ``groups[category](event)`` appends (a third of a second per 10 million saved)."""

    def __missing__(self, category: str | None) -> Callable[[Any], None]:
        self[category] = append = cast(Any, []).append
        return cast(Callable[[Any], None], append)

    def lists(self) -> list[tuple[str | None, Spans]]:
        return [(category, cast(Any, append).__self__) for category, append in self.items()]


class Collector:
    """Fills column stores; :mod:`ddiag.ingest.frames` turns them into tables."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.names: Codes[str] = Codes()
        self.texts: Codes[bytes] = Codes()
        """Shapes and types of operators, as JSON text."""
        self.calls: Codes[CallMeta] = Codes()
        """Descriptions of collectives."""
        self.columns: dict[str, dict[str, list[IntColumn]]] = defaultdict(lambda: defaultdict(list))
        self.counters: list[tuple[str, int, float]] = []
        self.metadata: list[tuple[str, object, object, dict[str, Any]]] = []
        """(kind, pid, tid, args) of the process and thread names."""
        self.events = 0
        self.dropped = 0
        self.unknown: Counter[str] = Counter()
        self.device_kinds: Counter[str] = Counter()
        """Runtime calls and device work by kind of device."""
        self.old_layout = False
        """Categories of torch < 1.11: annotations are filed under operators."""
        self._odd_tids: dict[str, int] = {}
        self._open: dict[tuple[object, object], list[ev.Begin]] = defaultdict(list)

    def add(self, events: Sequence[ev.Event]) -> None:
        """Take one chunk of events."""
        self.events += len(events)
        groups = _Groups()
        for event in events:
            groups[event.cat](event)
        marked = {
            ev.BEGIN: self._begin,
            ev.INSTANT: self._instants,
            ev.COUNTER: self._counters,
            ev.METADATA: self._names,
        }
        if ev.END in groups:
            self._match([event for event in events if event.cat in (ev.BEGIN, ev.END)])
            groups.pop(ev.BEGIN, None)
        for category, group in groups.lists():
            if category in (ev.END, ev.IGNORED):
                continue
            if category in marked:
                marked[category](group)
            else:
                self._spans(category, group)

    def finish(self) -> None:
        """Whatever began and never ended is counted as dropped."""
        self.dropped += sum(map(len, self._open.values()))
        self._open.clear()

    def _spans(self, category: str | None, group: Spans) -> None:
        kind = family(category)
        if kind is Family.IGNORED:
            return
        if kind is Family.UNKNOWN:
            self.unknown[category or "none"] += len(group)
            return
        starts, ends = self.clock.spans([span.ts for span in group], [span.dur for span in group])
        bad = starts == BAD_TIME
        if bad.any():
            self.dropped += int(bad.sum())
            group = [span for span, is_bad in zip(group, bad.tolist(), strict=True) if not is_bad]
            starts, ends = starts[~bad], ends[~bad]
        if not group:
            return
        if kind in _OP_FAMILIES:
            table = self._ops(kind, group)
        elif kind is Family.LAUNCH:
            table = self._launches(group)
        else:
            table = self._device_work(kind, group)
        if table != "ops":
            self.device_kinds[device_kind(category or "")] += len(group)
        self._put(table, start_ns=starts, end_ns=ends, name=self._name_codes(group))

    def _put(self, table: str, **columns: IntColumn) -> None:
        store = self.columns[table]
        for name, values in columns.items():
            store[name].append(values)

    def _name_codes(self, group: Spans) -> IntColumn:
        return ints(list(map(self.names.__getitem__, [span.name for span in group])))

    def _ops(self, kind: Family, group: Spans) -> str:
        self.old_layout = self.old_layout or kind is Family.OLD_OP
        args = [span.args or NO_ARGS for span in group]
        self._put(
            "ops",
            kind=np.full(len(group), _OP_FAMILIES[kind], dtype=np.int64),
            tid=self._tids(group),
            external_id=_external_ids(args),
            sequence=ints([arg.sequence for arg in args]),
            fwd_tid=ints([arg.fwd_tid for arg in args]),
            dims=self._text_codes([arg.dims for arg in args]),
            dtypes=self._text_codes([arg.dtypes for arg in args]),
            call=self._call_codes(group, args),
        )
        return "ops"

    def _launches(self, group: Spans) -> str:
        args = [span.args or NO_ARGS for span in group]
        self._put(
            "launches",
            tid=self._tids(group),
            correlation=ints([arg.correlation for arg in args]),
            external_id=_external_ids(args),
        )
        return "launches"

    def _device_work(self, kind: Family, group: Spans) -> str:
        args = [span.args or NO_ARGS for span in group]
        table = "kernels" if kind is Family.KERNEL else "copies"
        self._put(
            table,
            device=ints([arg.device for arg in args]),
            stream=_streams(group, args),
            correlation=ints([arg.correlation for arg in args]),
            external_id=_external_ids(args),
        )
        if table == "copies":
            self._put(
                table,
                bytes=ints([arg.bytes for arg in args]),
                memset=np.full(len(group), kind is Family.MEMSET, dtype=np.int64),
            )
        else:
            self._put(table, call=self._call_codes(group, args))
        return table

    def _tids(self, group: Spans) -> IntColumn:
        return ints([span.tid for span in group], convert=self._odd_tid)

    def _odd_tid(self, value: object, default: int) -> int:
        """Threads named by words get a number of their own below -1."""
        number = to_int(value, default)
        if number != default or not isinstance(value, str):
            return number
        return self._odd_tids.setdefault(value, -2 - len(self._odd_tids))

    def _text_codes(self, raws: list[msgspec.Raw]) -> IntColumn:
        if raws.count(ev.MISSING) == len(raws):
            return np.full(len(raws), -1, dtype=np.int64)
        texts = self.texts
        return np.array([-1 if raw is ev.MISSING else texts[bytes(raw)] for raw in raws], dtype=np.int64)

    def _call_codes(self, group: Spans, args: list[Any]) -> IntColumn:
        if not isinstance(group[0], ev.CompleteCollective):
            return np.full(len(group), -1, dtype=np.int64)
        calls = self.calls
        return np.array(
            [calls[describe(arg)] if getattr(arg, "collective", None) is not None else -1 for arg in args],
            dtype=np.int64,
        )

    def _match(self, edges: Spans) -> None:
        """Join begin and end events of a thread, in file order, to spans."""
        spans: dict[str | None, Spans] = defaultdict(list)
        for edge in edges:
            stack = self._open[edge.pid, edge.tid]
            if edge.cat == ev.BEGIN:
                stack.append(edge)
            elif stack and (span := _join(stack.pop(), edge)) is not None:
                spans[span.cat].append(span)
            else:
                self.dropped += 1
        for category, group in spans.items():
            self._spans(category, group)

    def _begin(self, group: Spans) -> None:
        for edge in group:
            self._open[edge.pid, edge.tid].append(edge)

    def _instants(self, group: Spans) -> None:
        group = [event for event in group if event.name == "[memory]" and event.args is not None]
        if not group:
            return
        times = self.clock.times([event.ts for event in group])
        args = [event.args for event in group]
        self._put(
            "memory",
            ts_ns=times,
            device_type=ints([arg.device_type for arg in args]),
            device_id=ints([arg.device_id for arg in args]),
            bytes=ints([arg.bytes for arg in args], BAD_TIME),
            allocated_bytes=ints([arg.allocated for arg in args], BAD_TIME),
            reserved_bytes=ints([arg.reserved for arg in args], BAD_TIME),
        )

    def _counters(self, group: Spans) -> None:
        times = self.clock.times([event.ts for event in group])
        for event, time in zip(group, times.tolist(), strict=True):
            for key, value in _object(event.args).items():
                if time != BAD_TIME and isinstance(value, (int, float)) and not isinstance(value, bool):
                    self.counters.append((f"{event.name} {key}".strip(), time, float(value)))

    def _names(self, group: Spans) -> None:
        for event in group:
            if event.name in ("process_name", "process_labels", "thread_name"):
                self.metadata.append((event.name, event.pid, event.tid, _object(event.args)))


def _external_ids(args: list[Any]) -> IntColumn:
    found = ints([arg.external_id for arg in args])
    if found.min() >= 0:
        return found
    old = ints([arg.old_external_id for arg in args])
    return np.where(found == -1, old, found)


def _streams(group: Spans, args: list[Any]) -> IntColumn:
    """The stream argument; where there is none, the row of the timeline is the stream's."""
    values = [arg.stream for arg in args]
    if None in values:
        values = [span.tid if value is None else value for value, span in zip(values, group, strict=True)]
    return ints(values)


def _join(begin: ev.Begin, end: ev.End) -> ev.CompleteCollective | None:
    try:
        length = float(end.ts) - float(begin.ts)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return ev.CompleteCollective(
        cat=begin.category, name=begin.name, tid=begin.tid, ts=begin.ts, dur=length, args=begin.args
    )


def _object(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(raw) if raw is not ev.MISSING else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
