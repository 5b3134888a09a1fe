"""Traces of single files to the tables and the coverage of one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import polars as pl

from ddiag.ingest.facts import Group
from ddiag.ingest.jobs import Member, Picked, pick
from ddiag.ingest.sources import Source
from ddiag.ingest.trace import Trace
from ddiag.model.run import Coverage, InputFile, Run
from ddiag.model.tables import TABLES

_IDS = ("correlation", "external_id")
_CAPTURE_BITS = 40
"""Ids of a later profiler cycle are lifted by cycle << 40: they start over, and must not join with the first's."""
_STEP_NUMBER = r"^ProfilerStep#?\s*(\d+)"


def assemble(traces: Sequence[Trace], unreadable: Sequence[tuple[str, str]], notes: Sequence[str] = ()) -> Run:
    """One run from *traces* (at least one)."""
    picked = pick(traces)
    renamed = _group_names(picked.members)
    frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for member in picked.members:
        for name, table in _tables_of(member, renamed).items():
            frames[name].append(table)
    tables = {
        name: pl.concat([TABLES[name].conform(part) for part in parts], rechunk=True) for name, parts in frames.items()
    }
    if "collectives" in tables:
        tables["collectives"] = _number_calls(tables["collectives"])
    tables |= _summaries(picked, renamed)
    tables = {name: table for name, table in tables.items() if not table.is_empty()}
    return Run(
        {name: tables[name] for name in TABLES if name in tables}, _coverage(traces, picked, tables, unreadable, notes)
    )


def _tables_of(member: Member, renamed: dict[tuple[int, str], str]) -> dict[str, pl.DataFrame]:
    """The trace's tables with rank, distinct ids and unambiguous group names."""
    lift = member.capture << _CAPTURE_BITS
    out = {}
    for name, table in member.trace.tables.items():
        changes = [pl.lit(member.rank, dtype=pl.Int32).alias("rank")]
        if lift:
            changes += [
                pl.when(pl.col(key) >= 0).then(pl.col(key) + lift).otherwise(pl.col(key)).alias(key)
                for key in _IDS
                if key in table.columns
            ]
        if name == "collectives":
            names = {old: new for (rank, old), new in renamed.items() if rank == member.rank}
            changes.append(pl.col("group").replace(names))
        out[name] = table.with_columns(changes)
    if "ops" in out and (steps := _steps(out["ops"])) is not None:
        out["steps"] = steps
    return out


def _steps(ops: pl.DataFrame) -> pl.DataFrame | None:
    marks = ops.filter(pl.col("kind") == "annotation").select("rank", "name", "start_ns", "end_ns")
    marks = marks.with_columns(pl.col("name").cast(pl.String)).filter(pl.col("name").str.contains(_STEP_NUMBER))
    if marks.is_empty():
        return None
    return (
        marks.with_columns(pl.col("name").str.extract(_STEP_NUMBER, 1).cast(pl.Int64, strict=False).alias("step"))
        .drop_nulls("step")
        .sort("start_ns")
    )


def _number_calls(collectives: pl.DataFrame) -> pl.DataFrame:
    """``seq``: order of issue within rank and group (kernels of two streams may swap their start times).

    A kernel whose launch the profile missed was issued before the next one of its stream.
    """
    issued = pl.coalesce(pl.col("enqueue_ns").backward_fill().over("rank", "group", "stream"), "start_ns")
    return (
        collectives.sort("rank", "start_ns")
        .with_columns(issued.alias("_issued"))
        .sort("rank", "_issued", "start_ns")
        .with_columns(pl.int_range(pl.len()).over("rank", "group").cast(pl.Int64).alias("seq"))
        .drop("_issued")
        .sort("rank", "start_ns", "seq")
    )


def _group_names(members: Sequence[Member]) -> dict[tuple[int, str], str]:
    """(rank, name) -> unambiguous name, where ranks use one name for groups of different members."""
    meant: dict[str, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        for group in member.trace.groups:
            if group.ranks:
                meant[group.name][group.ranks].append(member.rank)
    return {
        (rank, name): f"{name}[{ranks[0]}-{ranks[-1]}]"
        for name, versions in meant.items()
        if len(versions) > 1
        for ranks, users in versions.items()
        for rank in users
    }


def _summaries(picked: Picked, renamed: dict[tuple[int, str], str]) -> dict[str, pl.DataFrame]:
    captures: list[dict[str, object]] = []
    ranks: dict[int, dict[str, object]] = {}
    groups: dict[str, Group] = {}
    for member in picked.members:
        trace = member.trace
        start, end = trace.span
        captures.append(
            {
                "rank": member.rank, "capture": member.capture, "source": trace.source.label, "start_ns": start,
                "end_ns": end, "with_stack": trace.with_stack, "profile_memory": trace.profile_memory,
                "truncated": trace.truncated, "framework": trace.framework, "versions": trace.versions,
            }
        )  # fmt: skip
        row = ranks.setdefault(member.rank, {"rank": member.rank, "rank_known": member.rank_known})
        _complete(row, trace)
        for group in trace.groups:
            name = renamed.get((member.rank, group.name), group.name)
            if name not in groups or not groups[name].ranks:
                groups[name] = Group(name, group.desc, group.size, group.ranks)
    rows: list[dict[str, object]] = [
        {"group": group.name, "desc": group.desc, "size": group.size or len(group.ranks) or None,
         "ranks": list(group.ranks) or None}
        for group in groups.values()
    ]  # fmt: skip
    found: dict[str, list[dict[str, object]]] = {"ranks": list(ranks.values()), "captures": captures, "groups": rows}
    return {name: pl.DataFrame(rows, schema=TABLES[name].schema, strict=False) for name, rows in found.items() if rows}


def _complete(row: dict[str, object], trace: Trace) -> None:
    """Take from *trace* what earlier cycles of the rank did not say."""
    facts = {
        "host": trace.host, "device_kind": trace.device_kind, "device_name": trace.device_name,
        "device_memory_bytes": trace.device_memory_bytes, "backend": trace.backend, "world_size": trace.world_size,
        "main_tid": trace.main_tid,
    }  # fmt: skip
    for name, value in facts.items():
        if row.get(name) is None:
            row[name] = value
    row["source"] = f"{row['source']}, {trace.source.label}" if "source" in row else trace.source.label


def _coverage(
    traces: Sequence[Trace],
    picked: Picked,
    tables: dict[str, pl.DataFrame],
    unreadable: Sequence[tuple[str, str]],
    notes: Sequence[str],
) -> Coverage:
    used = {id(member.trace): member for member in picked.members}
    left_out = {id(trace): why for trace, why in picked.left_out}
    left_out |= {id(trace): "the same recording is read from its own file" for trace in picked.copies}
    world = max((m.trace.world_size for m in picked.members if m.trace.world_size is not None), default=0)
    seen = sorted({member.rank for member in picked.members if member.rank_known})
    steps = tables["steps"]["step"].unique().sort().to_list() if "steps" in tables else []
    return Coverage(
        inputs=tuple(_input(trace, used.get(id(trace)), left_out.get(id(trace))) for trace in traces),
        unreadable=tuple(unreadable),
        ranks_seen=tuple(seen),
        ranks_expected=tuple(range(world)),
        steps=tuple(steps),
        dropped_records=sum(member.trace.dropped for member in picked.members),
        notes=(*picked.notes, *_clock_notes(picked.members), *notes),
    )


def _input(trace: Trace, member: Member | None, left_out: str | None) -> InputFile:
    notes = list(trace.notes)
    if left_out is not None:
        notes.insert(0, f"left out: {left_out}")
    elif member is not None and not member.rank_known:
        notes.insert(0, "rank unknown")
    elif trace.rank_from == "name":
        notes.insert(0, "rank taken from the file name")
    source: Source = trace.source
    return InputFile(
        path=source.label,
        kind=trace.kind,
        bytes=source.bytes,
        rank=None if member is None else member.rank,
        events=trace.events,
        dropped=trace.dropped,
        note="; ".join(notes),
    )


def _clock_notes(members: Sequence[Member]) -> list[str]:
    undated = [member.trace.on_epoch for member in members].count(False)
    if len(members) > 1 and undated:
        return [
            f"{undated} of {len(members)} traces do not say when they were recorded: "
            "their times cannot be compared with the others' without alignment"
        ]
    return []
