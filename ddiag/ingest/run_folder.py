"""A run folder of ddiag's recorder (or a single ring, or the folders of several nodes) as a run.

It may be read at any time: while the job runs, after it ended, and after any of its processes was killed at any
instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from ddiag.errors import InputError
from ddiag.ingest.node_samples import NodeSamples, read_samples
from ddiag.ingest.recorded_choice import Job, choose
from ddiag.ingest.recorded_cost import recording_cost
from ddiag.ingest.recorded_device import device_notes
from ddiag.ingest.recorded_facts import problems
from ddiag.ingest.recorded_files import RunSources, whole
from ddiag.ingest.recorded_process import Placed, Process, place, read_process
from ddiag.ingest.recorded_rows import side_tables
from ddiag.ingest.recorded_tables import memory_of
from ddiag.ingest.recorded_unfinished import unfinished_tables
from ddiag.ingest.sources import STORAGE_ERRORS
from ddiag.model.run import Coverage, InputFile, Run
from ddiag.model.tables import TABLES

_SAME_HOST_NS = 50_000_000
"""Clocks (Unix minus monotonic) this near are of one host: on others the monotonic clock began at another boot."""
_SHOWN_PROBLEMS = 5
_DEVICE_CALLS = "when calls on a device end"
"""What the recorder says it does not see, whether the job makes such calls or not."""


def recorded_run(
    folders: Sequence[RunSources], unreadable: Sequence[tuple[str, str]], notes: Sequence[str] = ()
) -> Run:
    """The run that *folders* hold; raises :class:`~ddiag.errors.InputError` when no process left anything."""
    refused = list(unreadable)
    job = choose(folders, lambda run: _read(run, refused))
    if not job.processes:
        raise InputError(_why_nothing(folders, refused))
    nodes = _nodes(job, refused)
    placed = _on_one_clock(job.processes, nodes)
    tables = _joined(placed)
    tables |= side_tables(job, placed, nodes)
    tables |= unfinished_tables(job, placed)
    tables = {name: table for name, table in tables.items() if not table.is_empty()}
    return Run(
        {name: tables[name] for name in TABLES if name in tables}, _coverage(job, placed, tables, refused, notes)
    )


def _read(run: RunSources, refused: list[tuple[str, str]]) -> list[Process]:
    found = []
    for sources in run.processes:
        try:
            found.append(read_process(sources))
        except InputError as error:
            refused.append((sources.label, str(error).removeprefix(f"{sources.label}: ")))
        except STORAGE_ERRORS as error:
            refused.append((sources.label, f"cannot be read: {error}"))
    return found


def _why_nothing(folders: Sequence[RunSources], refused: Sequence[tuple[str, str]]) -> str:
    if refused:
        return "\n".join(f"{path}: {why}" for path, why in refused[:8])
    roots = ", ".join(run.root or "." for run in folders[:3])
    return (
        f"{roots}: no process of this run has trained yet (none joined a process group or stepped an optimizer), "
        "or recording was off (DDIAG_DISABLE=1, python -I)"
    )


# -- clocks --------------------------------------------------------------------------------------------------------


def _on_one_clock(processes: Sequence[Process], nodes: Sequence[NodeSamples]) -> list[Placed]:
    """Processes of one host share its monotonic clock, so they get one offset: their times compare exactly."""
    hosts = _hosts(processes, nodes)
    offsets: dict[str, list[int]] = defaultdict(list)
    for process in processes:
        offsets[hosts[id(process)]].append(process.clock_offset_ns)
    middle = {host: sorted(found)[len(found) // 2] for host, found in offsets.items()}
    return [place(process, middle[hosts[id(process)]]) for process in processes]


def _hosts(processes: Sequence[Process], nodes: Sequence[NodeSamples]) -> dict[int, str]:
    """A key of the host of each process, by id(): its name where known, and which clock it has."""
    named = {pid: node.host for node in nodes for pid in node.rank_of}
    found: dict[int, str] = {}
    clocks: list[int] = []
    for process in sorted(processes, key=lambda one: one.clock_offset_ns):
        if not clocks or process.clock_offset_ns - clocks[-1] > _SAME_HOST_NS:
            clocks.append(process.clock_offset_ns)
        found[id(process)] = f"{process.facts.host or named.get(process.pid, '')}/{len(clocks)}"
    return found


# -- tables --------------------------------------------------------------------------------------------------------


def _joined(placed: Sequence[Placed]) -> dict[str, pl.DataFrame]:
    frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for one in placed:
        for name, table in one.tables.items():
            frames[name].append(table)
    tables = {name: pl.concat(parts, rechunk=True) for name, parts in frames.items()}
    if "collectives" in tables:
        tables["collectives"] = tables["collectives"].sort("rank", "enqueue_ns", maintain_order=True)
    if "step_summaries" in tables:
        steps = tables["step_summaries"]
        tables["steps"] = TABLES["steps"].conform(steps)
        tables["memory"] = memory_of(steps)
    return tables


def _nodes(job: Job, refused: list[tuple[str, str]]) -> list[NodeSamples]:
    found = []
    for run in job.folders:
        for source in run.samples:
            try:
                found.append(read_samples(whole(source), source=source.label))
            except InputError as error:
                refused.append((source.label, str(error).removeprefix(f"{source.label}: ")))
    return found


# -- coverage ------------------------------------------------------------------------------------------------------


def _coverage(
    job: Job,
    placed: Sequence[Placed],
    tables: dict[str, pl.DataFrame],
    refused: Sequence[tuple[str, str]],
    notes: Sequence[str],
) -> Coverage:
    world = max((one.process.world_size or 0 for one in placed), default=0)
    begins = {one.process.rank: one.process.whole_from_ns + one.offset_ns for one in placed}
    steps = tables.get("steps", TABLES["steps"].empty())
    whole = steps.filter(pl.col("start_ns") >= pl.col("rank").replace_strict(begins, default=0, return_dtype=pl.Int64))
    return Coverage(
        inputs=tuple(_input(job, one) for one in placed),
        unreadable=tuple(refused),
        ranks_seen=tuple(sorted({one.process.rank for one in placed})),
        ranks_expected=tuple(range(world)),
        steps=tuple(whole["step"].unique().sort().to_list()),
        dropped_records=sum(one.process.dropped for one in placed),
        notes=(*job.notes, *_told(job, placed, tables), *notes),
        recording_cost=recording_cost(tables.get("step_summaries", pl.DataFrame())),
        ending=_ending(job),
    )


def _input(job: Job, one: Placed) -> InputFile:
    process = one.process
    notes = list(process.notes)
    if not process.closed:
        over = job.manifest is not None and job.manifest.end_wall_ns is not None
        notes.append("ended without closing its ring (killed?)" if over else "still running, or killed")
    return InputFile(
        path=process.sources.label,
        kind="recording",
        bytes=process.sources.bytes,
        rank=process.rank,
        events=process.record_count,
        dropped=process.dropped,
        note="; ".join(notes),
    )


def _told(job: Job, placed: Sequence[Placed], tables: dict[str, pl.DataFrame]) -> list[str]:
    """What limits the conclusions."""
    notes = []
    gone = max((sum(ring.overwritten for ring in one.process.rings) for one in placed), default=0)
    if gone:
        notes.append(
            f"the rings hold the newest records only (up to {gone:,} older ones of a rank are overwritten): earlier "
            "steps are known by their summaries"
        )
    tiers = {str(one.process.facts.tier.get("tier")) for one in placed if one.process.facts.tier}
    blind = {str(what) for one in placed for what in one.process.facts.tier.get("blind", ())}
    if not _calls_devices(tables):
        blind.discard(_DEVICE_CALLS)
    if any(one.process.facts.python_groups for one in placed):
        blind.add("calls of process groups written in Python")
    if tiers and blind:
        notes.append(f"not seen of communication (recorded by: {', '.join(sorted(tiers))}): {'; '.join(sorted(blind))}")
    notes += device_notes(tables)
    unwatched = sorted({what for one in placed for what in one.process.facts.unwatched})
    if unwatched:
        notes.append(f"not watched, as this version lacks what the recorder looks for: {', '.join(unwatched)}")
    for run in job.folders:
        source = run.own.get("errors.jsonl")
        found = problems(whole(source)) if source is not None else []
        notes += [f"recorder: {text}" for text in found[:_SHOWN_PROBLEMS]]
    return notes


def _calls_devices(tables: dict[str, pl.DataFrame]) -> bool:
    """Whether any call was made that a device carries out, or none was recorded that would tell."""
    calls = tables.get("collectives", TABLES["collectives"].empty())
    on_host = calls["name"].cast(pl.String).str.starts_with("gloo:").fill_null(value=False)
    return calls.is_empty() or not bool(on_host.all())


def _ending(job: Job) -> str:
    """How the job ended; empty while it runs, and where it ended well."""
    manifest = job.manifest
    if manifest is None or not manifest.exit_code:
        return ""
    if manifest.asked_to_end:
        return f"somebody ended the job with {manifest.asked_to_end} (exit code {manifest.exit_code})"
    return f"failed with exit code {manifest.exit_code}"


def with_traces(run: Run, traces: Run) -> Run:
    """*run* with the profiler traces taken while it was recorded.

    Tables the recorder has none of are the traces' own, so that they can be queried and drawn; analysis keeps apart
    what comes from where.
    """
    tables = {name: run.tables.get(name, traces.tables.get(name)) for name in TABLES}
    coverage = replace(
        run.coverage,
        inputs=(*run.coverage.inputs, *traces.coverage.inputs),
        notes=(*run.coverage.notes, *traces.coverage.notes),
        dropped_records=run.coverage.dropped_records + traces.coverage.dropped_records,
    )
    known = {name: table for name, table in tables.items() if table is not None}
    known["ranks"] = _with_devices(run.table("ranks"), traces.table("ranks"))
    return Run(known, coverage, traces)


def _with_devices(ranks: pl.DataFrame, seen: pl.DataFrame) -> pl.DataFrame:
    """*ranks* with what the traces say of their devices."""
    told = seen.filter(pl.col("device_kind") != "cpu").unique("rank", keep="first")
    facts = ("device_kind", "device_name", "device_memory_bytes")
    both = ranks.join(told.select("rank", *facts), on="rank", how="left", suffix="_seen", maintain_order="left")
    return TABLES["ranks"].conform(both.with_columns(pl.coalesce(f"{name}_seen", name).alias(name) for name in facts))
