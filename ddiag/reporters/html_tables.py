"""The tables of the report that belong to no chart."""

from __future__ import annotations

import dataclasses

import polars as pl

from ddiag.model.run import Coverage
from ddiag.model.signals import (
    Copies,
    HostLaunch,
    InputWait,
    KernelMix,
    LateRanks,
    Links,
    Memory,
    Precision,
    ShardUnits,
    Signals,
    StepBudget,
    SyncPoints,
)
from ddiag.plots import kernels
from ddiag.plots.communication import SUMMARY, collective_summary
from ddiag.plots.memory import PEAKS, peaks
from ddiag.plots.table import Column, DataTable, make_table

RANK = Column("rank", "Rank", kind="rank")
STEP = Column("step", "Step", kind="step")


def collectives(signals: Signals) -> DataTable | None:
    rows = collective_summary(signals)
    if rows is None:
        return None
    return make_table("collectives", "Collectives by group, operation and size", SUMMARY, rows, cut_by="most exposed")


def late_ranks(signals: Signals) -> DataTable | None:
    late = signals.get(LateRanks)
    if late is None or late.table.is_empty():
        return None
    columns = (
        RANK,
        Column("last_count", "Arrives last", "calls", "count"),
        Column("collectives", "Calls", "", "count"),
        Column("blame_share", "Waiting it causes", "% of all", "share"),
        Column("blame_ms", "Waiting it causes", "rank-ms"),
        Column("compute_ms", "Compute beyond peers", "ms/step"),
        Column("input_ms", "Input beyond peers", "ms/step"),
        Column("host_ms", "Host beyond peers", "ms/step"),
        Column("kernel_slowdown", "Kernel time to peers’", "×"),
        Column("cause", "Likely cause", kind="text"),
    )
    rows = late.table.sort("blame_share", "rank", descending=[True, False], nulls_last=True)
    return make_table("late-ranks", "Who arrives last", columns, rows, limit=16, cut_by="most waiting caused")


def shard_units(signals: Signals) -> DataTable | None:
    units = signals.get(ShardUnits)
    if units is None or units.table.is_empty():
        return None
    columns = (
        Column("op", "Operation", kind="text"),
        Column("bytes", "Unit", "", "bytes"),
        Column("count_per_step", "Calls", "per step", "count"),
        Column("dur_ms", "Duration", "ms/step"),
        Column("exposed_ms", "Exposed", "ms/step"),
    )
    rows = units.table.sort("exposed_ms", descending=True)
    return make_table("shard-units", "Sharded parameters: gathers and scatters", columns, rows, cut_by="most exposed")


def memory(signals: Signals) -> tuple[DataTable, ...]:
    """Peaks per device; left out when a timeline already carries them as its data."""
    found = signals.get(Memory)
    if found is None or found.per_rank.is_empty() or found.timeline.height >= 2:
        return ()
    return (make_table("memory-peaks", "Peak memory per rank", PEAKS, peaks(found), cut_by="fullest"),)


def top_kernels(signals: Signals) -> DataTable | None:
    mix = signals.get(KernelMix)
    if mix is None or mix.top.is_empty():
        return None
    what = kernels.unit_of_work(signals)
    columns = (Column("name", what, kind="code"), *kernels.COLUMNS)
    rows = mix.top.with_columns(
        pl.col("name").cast(pl.String), pl.col("kernel_class").cast(pl.String).replace(kernels.WORDS)
    )
    return make_table("top-kernels", f"Costliest {what.lower()}s", columns, rows, limit=30, cut_by="costliest")


def precision(signals: Signals) -> DataTable | None:
    found = signals.get(Precision)
    if found is None or found.table.is_empty():
        return None
    columns = (
        Column("precision", "Precision", kind="text"),
        Column("ms_per_step", "Time per step", "ms"),
        Column("share", "Share of matmul time", "%", "share"),
        Column("example", "Example", kind="code"),
    )
    return make_table("precision", "Number formats of matrix multiplications", columns, found.table)


def input_wait(signals: Signals) -> DataTable | None:
    found = signals.get(InputWait)
    if found is None or found.per_rank.is_empty() or not float(found.per_rank["wait_ms"].sum()):
        return None
    columns = (
        RANK,
        Column("wait_ms", "In the loader", "ms/step"),
        Column("stall_ms", "of it device idle" if _on_device(signals) else "of it nothing computed", "ms/step"),
        Column("stall_share", "Share of step", "%", "share"),
    )
    rows = found.per_rank.sort("stall_ms", "rank", descending=[True, False])
    return make_table("input-wait", "Waiting for the next batch", columns, rows, limit=16, cut_by="longest stall")


def _on_device(signals: Signals) -> bool:
    budget = signals.get(StepBudget)
    return budget is None or budget.on_device


def sync_points(signals: Signals) -> DataTable | None:
    found = signals.get(SyncPoints)
    if found is None or found.table.is_empty():
        return None
    columns = (
        RANK,
        Column("op", "Operation", kind="code"),
        Column("where", "Called from", kind="code"),
        Column("count_per_step", "Calls", "per step", "count"),
        Column("wait_ms", "Host blocked", "ms/step"),
        Column("stall_ms", "of it device idle", "ms/step"),
    )
    rows = found.table.with_columns(pl.col("where").cast(pl.String).replace("", None), pl.col("op").cast(pl.String))
    rows = rows.sort("stall_ms", "rank", descending=[True, False])
    return make_table("sync-points", "Blocking synchronisations", columns, rows, limit=20, cut_by="longest stall")


def long_gaps(signals: Signals) -> DataTable | None:
    found = signals.get(HostLaunch)
    if found is None or found.long_gaps is None or found.long_gaps.is_empty():
        return None
    columns = (
        RANK,
        STEP,
        Column("gap_ms", "Device idle", "ms"),
        Column("host_ms_in_calls", "Host in calls", "ms"),
        Column("top_op", "Longest operator", kind="code"),
    )
    rows = found.long_gaps.sort("gap_ms", descending=True)
    title = "Long device gaps that are neither input nor synchronisation"
    return make_table("long-gaps", title, columns, rows, limit=20, cut_by="longest")


def copies(signals: Signals) -> DataTable | None:
    found = signals.get(Copies)
    if found is None or found.table.is_empty():
        return None
    columns = (
        Column("direction", "Direction", kind="text"),
        Column("pinned", "Pinned", kind="text"),
        Column("count_per_step", "Copies", "per step", "count"),
        Column("bytes_per_step", "Amount per step", "", "bytes"),
        Column("ms_per_step", "Time", "ms/step"),
        Column("gbps", "Bandwidth", "GB/s"),
        Column("exposed_ms", "Exposed", "ms/step"),
    )
    rows = found.table.with_columns(pl.col("direction").cast(pl.String)).sort("ms_per_step", descending=True)
    return make_table("copies", "Copies", columns, rows)


def links(signals: Signals) -> DataTable | None:
    found = signals.get(Links)
    if found is None or found.table.is_empty():
        return None
    columns = (
        Column("group", "Group", kind="code"),
        Column("op", "Operation", kind="text"),
        Column("group_size", "Group size", "ranks", "count"),
        Column("bytes", "Message", "", "bytes"),
        Column("busbw_gbps", "Bus bandwidth", "GB/s"),
        Column("expected_gbps", "Expected", "GB/s"),
        Column("efficiency", "Efficiency", "%", "share"),
        Column("basis", "Expected from", kind="text"),
    )
    rows = found.table.sort("efficiency", nulls_last=True)
    title = "Achieved against expected bandwidth"
    return make_table("link-efficiency", title, columns, rows, cut_by="least efficient")


def coverage_tables(coverage: Coverage) -> tuple[DataTable, ...]:
    """Files read and files that could not be."""
    files = make_table(
        "inputs",
        "Evidence read",
        (
            Column("path", "File", kind="code"),
            Column("kind", "Kind", kind="text"),
            RANK,
            Column("bytes", "Size", "", "bytes"),
            Column("events", "Events", "", "count"),
            Column("dropped", "Dropped", "", "count"),
            Column("note", "Note", kind="text"),
        ),
        [dataclasses.asdict(item) | {"note": item.note or None} for item in coverage.inputs],
        limit=64,
        cut_by="as given",
    )
    refused = make_table(
        "unreadable",
        "Evidence that could not be used",
        (Column("path", "File", kind="code"), Column("why", "Why", kind="text")),
        [{"path": path, "why": why} for path, why in coverage.unreadable],
        limit=200,
    )
    return tuple(table for table in (refused, files) if table.rows)
