"""Reads one PyTorch profiler (Kineto) trace into tables."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import polars as pl

from ddiag.ingest.call_table import CallFacts
from ddiag.ingest.collect import Collector
from ddiag.ingest.collectives import GPU_ANNOTATION, Shapes
from ddiag.ingest.facts import Device, Facts, Group, read_facts
from ddiag.ingest.file_rank import rank_from_name
from ddiag.ingest.frames import Columns, Tables, build
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.stream import EventStream
from ddiag.ingest.trace import Trace, UnusableError

LATEST_NS = 4 * 10**18
"""Later than this (year 2096), base and timestamp were not meant to be added."""
UNKNOWN_GROUP = "unknown"
_DRIVING = (r"^ProfilerStep", r"^(?:Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\.forward)")
_AUTOGRAD = "autograd::engine::evaluate_function"
_NO_OPS = pl.DataFrame(schema={"tid": pl.Int64, "kind": pl.String, "name": pl.String})
_TIMES = ("start_ns", "end_ns", "ts_ns", "enqueue_ns")


def read(source: Source, text: PlainText) -> Trace:
    """The facts of one trace; raises :class:`UnusableError` when it holds none."""
    stream = EventStream(text)
    if not stream.has_events:
        raise UnusableError("no traceEvents in it")
    if _is_own_export(stream.metadata):
        raise UnusableError("written by `ddiag export --perfetto`; give the traces it was made from")
    collector = Collector()
    with _collection_paused():
        for events in stream:
            collector.add(events)
            events.clear()
    collector.finish()
    facts = read_facts(stream.metadata)
    tables, launches, ops = build(collector, lambda found: _call_facts(found, facts))
    if not tables:
        raise UnusableError(_why_empty(collector, stream))
    rank = facts.rank if facts.rank is not None else _rank_from_calls(collector)
    device = _device(facts, tables)
    return Trace(
        source=source,
        kind="kineto",
        framework="pytorch",
        rank=rank if rank is not None else rank_from_name(source.name, _folder(source)),
        rank_from="content" if rank is not None else "name",
        world_size=facts.world_size,
        backend=facts.backend,
        host=facts.host,
        groups=_groups(facts, collector),
        tables=_shift(tables, facts.base_ns),
        main_tid=main_thread(tables, launches, ops),
        device_kind=_device_kind(facts, collector, tables),
        device_name=device.name,
        device_memory_bytes=device.memory_bytes,
        with_stack=facts.with_stack or bool((ops["kind"] == 2).any()),
        profile_memory=facts.profile_memory or "memory" in tables,
        versions=facts.versions,
        truncated=stream.truncated or bool(text.damage),
        events=collector.events,
        dropped=collector.dropped + stream.dropped,
        notes=_notes(collector, stream, text),
    )


def _is_own_export(metadata: Mapping[str, object]) -> bool:
    """All ranks of a run in one file, for looking at: as evidence it would be one rank that does everything."""
    about = metadata.get("otherData")
    return isinstance(about, dict) and "ddiag" in about


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Events hold no cycles, but there are so many that Python would search for them all the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _call_facts(collector: Collector, facts: Facts) -> CallFacts:
    groups = {group.name: group.size or len(group.ranks) or None for group in facts.groups}
    return CallFacts(
        metas=list(collector.calls),
        shapes=Shapes(list(collector.texts)),
        default_group=next(iter(groups)) if len(groups) == 1 else UNKNOWN_GROUP,
        group_sizes={name: size for name, size in groups.items() if size is not None},
        has_nccl=facts.backend is None or "nccl" in facts.backend,
    )


def _groups(facts: Facts, collector: Collector) -> tuple[Group, ...]:
    """Process groups of the configuration, completed by what the calls say."""
    found = {group.name: group for group in facts.groups}
    for meta in collector.calls:
        if not meta.group or meta.group_size < 1 or (meta.group in found and found[meta.group].ranks):
            continue
        members = meta.members
        if members is not None and len(members) == meta.group_size:
            found[meta.group] = Group(meta.group, meta.desc, meta.group_size, members)
        elif meta.group not in found:
            found[meta.group] = Group(meta.group, meta.desc, meta.group_size)
    return tuple(found.values())


def _rank_from_calls(collector: Collector) -> int | None:
    """The calls' own ``Rank`` is the rank within a group: global only in a group of ranks 0 … n-1."""
    known = {
        meta.rank
        for meta in collector.calls
        if meta.rank >= 0 and meta.group_size > 1 and meta.members == tuple(range(meta.group_size))
    }
    return known.pop() if len(known) == 1 else None


def _folder(source: Source) -> str:
    return source.label.replace("\\", "/").rstrip("/").rpartition("/")[0].rpartition("/")[2]


def main_thread(tables: Tables, launches: Columns, ops: Columns) -> int | None:
    """The thread that drives training: takes the steps, else runs the optimizer, else launches or computes most.

    In training most launches may come from autograd's thread, which drives nothing.
    """
    named = tables["ops"].select("tid", "kind", pl.col("name").cast(pl.String)) if "ops" in tables else _NO_OPS
    marks = named.filter(pl.col("kind") == "annotation")
    for pattern in _DRIVING:
        if (marked := marks.filter(pl.col("name").str.contains(pattern))).height:
            return _most_common(marked["tid"])
    backward = named.filter(pl.col("name").str.starts_with(_AUTOGRAD))["tid"].unique().implode()
    for tids in (launches["tid"], ops["tid"][ops["kind"] == 0], ops["tid"][ops["kind"] != GPU_ANNOTATION]):
        threads = pl.Series("tid", tids)
        forward = threads.filter(~threads.is_in(backward))
        if len(threads):
            return _most_common(forward if len(forward) else threads)
    return None


def _most_common(threads: pl.Series) -> int:
    return int(threads.value_counts(sort=True)["tid"][0])


def _device(facts: Facts, tables: Tables) -> Device:
    """The device most work ran on. ROCm numbers devices otherwise than it lists them: then all must be alike."""
    for name in ("kernels", "copies"):
        if name in tables:
            used = int(tables[name]["device"].value_counts(sort=True)["device"][0])
            alike = set(facts.devices.values())
            return facts.devices.get(used) or (alike.pop() if len(alike) == 1 else Device())
    return Device()


def _device_kind(facts: Facts, collector: Collector, tables: Tables) -> str:
    names = tables["launches"]["name"].unique().cast(pl.String).to_list() if "launches" in tables else []
    if facts.amd or any(name.startswith("hip") for name in names):
        return "rocm"
    kinds = collector.device_kinds
    return next((kind for kind, _ in kinds.most_common() if kind != "cuda"), "cuda" if kinds else "cpu")


def _shift(tables: Tables, base_ns: int | None) -> Tables:
    """Add the trace's time base, unless its times are on the epoch already."""
    latest = max(
        int(value)
        for table in tables.values()
        for column in _TIMES
        if column in table.columns and isinstance(value := table[column].max(), int)
    )
    if base_ns is None or latest + base_ns > LATEST_NS:
        return tables
    return {
        name: table.with_columns(pl.col(column) + base_ns for column in _TIMES if column in table.columns)
        for name, table in tables.items()
    }


def _why_empty(collector: Collector, stream: EventStream) -> str:
    if collector.events == 0:
        return "the trace is cut off before its first event" if stream.truncated else "no events in it"
    if collector.unknown:
        kinds = ", ".join(f"{name} ({count})" for name, count in collector.unknown.most_common(3))
        return f"none of its {collector.events:,} events is an operator, runtime call or kernel (categories: {kinds})"
    return f"none of its {collector.events:,} events can be used"


def _notes(collector: Collector, stream: EventStream, text: PlainText) -> tuple[str, ...]:
    notes = []
    if text.damage:
        notes.append(text.damage)
    if stream.truncated:
        notes.append(
            f"ends before its JSON does (killed while writing?): {collector.events:,} events up to the cut are used"
        )
    dropped = collector.dropped + stream.dropped
    if dropped:
        notes.append(f"{dropped:,} of {collector.events + stream.dropped:,} events could not be understood")
    if collector.unknown:
        kinds = ", ".join(f"{name} ({count:,})" for name, count in collector.unknown.most_common(3))
        notes.append(f"events of unknown category left out: {kinds}")
    return tuple(notes)
