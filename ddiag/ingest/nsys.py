"""Reads an SQLite export of Nsight Systems: a trace for each process that used the device."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from ddiag.ingest import events as ev
from ddiag.ingest.call_table import CallFacts
from ddiag.ingest.collect import Collector
from ddiag.ingest.collectives import Shapes
from ddiag.ingest.file_rank import rank_from_name
from ddiag.ingest.frames import Tables, build
from ddiag.ingest.kineto import UNKNOWN_GROUP, main_thread
from ddiag.ingest.nsys_tables import (
    CALLS,
    COPIES,
    KERNELS,
    PUSH_POP,
    RANGES,
    ROWS,
    SETS,
    START_END,
    Export,
    call_name,
    copy_name,
    pid_of,
    range_name,
    tid_of,
)
from ddiag.ingest.sources import PlainText, Source, is_remote
from ddiag.ingest.trace import Several, Trace, UnusableError

MAGIC = b"SQLite format 3\0"
_CHUNK_BYTES = 8 << 20
_EXPECTED = "an SQLite database, but not an export of Nsight Systems with CUDA or NVTX in it"
Spans = Iterator[tuple[int, ev.CompleteCollective]]


def matches(head: bytes, _: str) -> bool:
    return head.startswith(MAGIC)


def read(source: Source, text: PlainText) -> Several:
    """The traces of one export; raises :class:`UnusableError` when it holds none."""
    with _database(source, text) as path, closing(_connected(path)) as connection:
        export = Export(connection)
        traces = [trace for trace in _traces(export, source) if trace is not None]
    if not traces:
        raise UnusableError(export.notes[0] if export.notes else _EXPECTED)
    return Several(tuple(traces))


@contextmanager
def _database(source: Source, text: PlainText) -> Iterator[str]:
    """A path that SQLite can open: the file itself, or a copy of what is packed or far away."""
    if not (source.member or source.packed or is_remote(source.path)):
        yield source.path
        return
    handle, name = tempfile.mkstemp(suffix=".sqlite")
    try:
        with os.fdopen(handle, "wb") as file:
            while chunk := text.read(_CHUNK_BYTES):
                file.write(chunk)
        yield name
    finally:
        Path(name).unlink()


def _connected(path: str) -> sqlite3.Connection:
    """Read-only, and without the journal files that a reader would leave beside a database of somebody else."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(Path(path).resolve()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise UnusableError(f"an SQLite database that cannot be opened ({error})") from error
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def _traces(export: Export, source: Source) -> Iterator[Trace | None]:
    collectors: dict[int, Collector] = defaultdict(Collector)
    epoch_ns = export.epoch_ns()
    for spans in (_kernels(export), _copies(export), _calls(export), _ranges(export)):
        _collect(spans, collectors, epoch_ns)
    ranks, alone = export.ranks(), len(collectors) == 1
    for pid, collector in sorted(collectors.items()):
        rank = ranks.get(pid, rank_from_name(source.name) if alone else None)
        yield _trace(export, source if alone else replace(source, member=f"pid {pid}"), collector, rank)


def _collect(spans: Spans, collectors: dict[int, Collector], epoch_ns: int | None) -> None:
    """Spans to the collector of their process, in chunks; times on the epoch in ns, or in µs of the session."""
    waiting: dict[int, list[ev.Event]] = defaultdict(list)
    for pid, span in spans:
        if epoch_ns is not None:
            span.ts = int(span.ts) + epoch_ns  # type: ignore[arg-type]
        else:
            span.ts, span.dur = float(span.ts) / 1000.0, float(span.dur) / 1000.0  # type: ignore[arg-type]
        waiting[pid].append(span)
        if len(waiting[pid]) >= ROWS:
            collectors[pid].add(waiting.pop(pid))
    for pid, rest in waiting.items():
        collectors[pid].add(rest)


def _span(
    category: str, name: str, start: object, end: object, args: ev.CollectiveArgs, tid: int | None = None
) -> ev.CompleteCollective | None:
    if not isinstance(start, int) or not isinstance(end, int) or end < start:
        return None
    return ev.CompleteCollective(cat=category, name=name, tid=tid, ts=start, dur=end - start, args=args)


def _args(**values: object) -> ev.CollectiveArgs:
    return ev.CollectiveArgs(**{key: value for key, value in values.items() if value is not None})  # type: ignore[arg-type]


def _kernels(export: Export) -> Spans:
    names = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "demangledName", "shortName")
    for start, end, process, device, stream, correlation, full, short in export.rows(KERNELS, names):
        args = _args(device=device, stream=stream, correlation=correlation)
        span = _span("kernel", export.text(full) or export.text(short, "kernel"), start, end, args)
        if span is not None:
            yield pid_of(process), span


def _copies(export: Export) -> Spans:
    names = (
        "start",
        "end",
        "globalPid",
        "deviceId",
        "streamId",
        "correlationId",
        "bytes",
        "copyKind",
        "srcKind",
        "dstKind",
    )
    for start, end, process, device, stream, correlation, size, kind, origin, target in export.rows(COPIES, names):
        args = _args(device=device, stream=stream, correlation=correlation, bytes=size)
        if (span := _span("gpu_memcpy", copy_name(kind, origin, target), start, end, args)) is not None:
            yield pid_of(process), span
    for start, end, process, device, stream, correlation, size in export.rows(SETS, names[:7]):
        args = _args(device=device, stream=stream, correlation=correlation, bytes=size)
        if (span := _span("gpu_memset", "Memset (Device)", start, end, args)) is not None:
            yield pid_of(process), span


def _calls(export: Export) -> Spans:
    for start, end, thread, correlation, code in export.rows(
        CALLS, ("start", "end", "globalTid", "correlationId", "nameId")
    ):
        name = call_name(export.text(code))
        category = "cuda_driver" if name[:2] == "cu" and name[2:3].isupper() else "cuda_runtime"
        if (span := _span(category, name, start, end, _args(correlation=correlation), tid_of(thread))) is not None:
            yield pid_of(thread), span


def _ranges(export: Export) -> Spans:
    """NVTX ranges of threads; marks, counters and domains have other types."""
    for start, end, kind, text, code, thread in export.rows(
        RANGES, ("start", "end", "eventType", "text", "textId", "globalTid")
    ):
        if kind not in (PUSH_POP, START_END, None):
            continue
        category, name = range_name(str(text) if text else export.text(code))
        if name and (span := _span(category, name, start, end, _args(), tid_of(thread))) is not None:
            yield pid_of(thread), span


def _trace(export: Export, source: Source, collector: Collector, rank: int | None) -> Trace | None:
    collector.finish()
    facts = CallFacts(list(collector.calls), Shapes(list(collector.texts)), UNKNOWN_GROUP, {}, has_nccl=True)
    tables, launches, ops = build(collector, lambda _: facts)
    if not tables:
        return None
    name, memory = _device(export, tables)
    return Trace(
        source=source,
        kind="nsys",
        framework="pytorch",
        tables=tables,
        rank=rank,
        host=export.host(),
        main_tid=main_thread(tables, launches, ops),
        device_kind="cuda",
        device_name=name,
        device_memory_bytes=memory,
        truncated=bool(export.notes),
        events=collector.events,
        dropped=collector.dropped,
        notes=tuple(dict.fromkeys(export.notes)),
    )


def _device(export: Export, tables: Tables) -> tuple[str | None, int | None]:
    """Name and memory of the device most work ran on."""
    for name in ("kernels", "copies"):
        if name in tables:
            used = int(tables[name]["device"].value_counts(sort=True)["device"][0])
            return export.devices().get(used, (None, None))
    return None, None
