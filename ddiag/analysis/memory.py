"""Device memory over time, and calls to the device allocator inside steady steps."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from ddiag.analysis.names import of_kind, times, where_name
from ddiag.analysis.steady_work import NS_PER_MS, busy_ns, in_steady, mean_step_ms
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import AllocatorCalls, Memory

_MOST_POINTS = 2000
"""Points of the timeline kept per rank and device."""
_ENOUGH_STEPS = 4
"""Fewer step ends do not make a trend."""
_HOST_MEMORY = re.compile(r"Host|Managed")


def memory(run: Run, windows: StepWindows) -> Memory | None:
    """Peak, timeline and trend of device memory; None without allocator events of a device.

    Host allocations (device ``cpu``) are another resource and are left out.
    """
    events = run.table("memory").filter(pl.col("device") != "cpu").sort(["rank", "device", "ts_ns"])
    events = events.filter(pl.col("allocated_bytes").is_not_null())
    if events.is_empty():
        return None
    per_rank = _peaks(events, run.table("ranks"))
    return Memory(
        per_rank=per_rank,
        timeline=thinned(events),
        peak_share=_highest(
            per_rank, pl.coalesce("peak_reserved_bytes", "peak_allocated_bytes") / pl.col("capacity_bytes")
        ),
        reserved_unused_share=_unused_at_peak(events),
        growth_bytes_per_step=_growth(events, windows),
    )


def _peaks(events: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    capacity = ranks.select("rank", pl.col("device_memory_bytes").alias("capacity_bytes")).unique("rank")
    return (
        events.group_by("rank", "device")
        .agg(
            pl.col("allocated_bytes").max().alias("peak_allocated_bytes"),
            _measured("reserved_bytes").max().alias("peak_reserved_bytes"),
        )
        .join(capacity, on="rank", how="left")
        .sort("rank", "device")
        .select("rank", "device", "peak_allocated_bytes", "peak_reserved_bytes", "capacity_bytes")
    )


def _measured(column: str) -> pl.Expr:
    """Values above zero: an allocator that does not report what it reserves writes 0."""
    return pl.when(pl.col(column) > 0).then(pl.col(column))


def _highest(frame: pl.DataFrame, value: pl.Expr) -> float | None:
    found = frame.select(value.max()).item()
    return None if found is None else float(found)


def _unused_at_peak(events: pl.DataFrame) -> float | None:
    """Largest (reserved - allocated) / reserved over ranks, each where its reservation is first at its peak.

    Judged at the moment in which most was allocated with that reservation, so that a pool that was full once is not
    called fragmented for being empty between steps.
    """
    known = events.with_columns(_measured("reserved_bytes").alias("_reserved")).filter(
        pl.col("_reserved").is_not_null()
    )
    at_peak = known.filter(pl.col("_reserved") == pl.col("_reserved").max().over("rank", "device"))
    fullest = at_peak.group_by("rank", "device").agg(pl.col("allocated_bytes").max(), pl.col("_reserved").first())
    return _highest(fullest, (pl.col("_reserved") - pl.col("allocated_bytes")) / pl.col("_reserved"))


def thinned(events: pl.DataFrame) -> pl.DataFrame:
    """At most 2,000 points per rank and device: the highest of each stretch of events, so that peaks stay."""
    stretch = pl.int_range(pl.len()).over("rank", "device") * _MOST_POINTS // pl.len().over("rank", "device")
    short = pl.len().over("rank", "device") <= _MOST_POINTS
    numbered = events.with_columns(
        pl.when(short).then(pl.int_range(pl.len()).over("rank", "device")).otherwise(stretch).alias("_stretch")
    )
    highest = pl.col("allocated_bytes") == pl.col("allocated_bytes").max().over("rank", "device", "_stretch")
    kept = numbered.filter(highest).unique(["rank", "device", "_stretch"], keep="first", maintain_order=True)
    return kept.select(
        "rank", "device", "ts_ns", "allocated_bytes", _measured("reserved_bytes").alias("reserved_bytes")
    )


def _growth(events: pl.DataFrame, windows: StepWindows) -> float | None:
    """Bytes per step by which memory at step ends grows on the rank where it grows most (Theil-Sen slope)."""
    slopes = []
    for (rank, _device), series in events.group_by("rank", "device"):
        steps = windows.steady.filter(pl.col("rank") == rank).sort("host_end_ns")
        at = np.searchsorted(times(series, "ts_ns"), times(steps, "host_end_ns"), side="right") - 1
        if (at >= 0).sum() < _ENOUGH_STEPS:
            continue
        held = series["allocated_bytes"].to_numpy()[at[at >= 0]]
        slopes.append(theil_sen(np.arange(held.size, dtype=np.float64), held.astype(np.float64)))
    return max(slopes, key=abs) if slopes else None


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """Median slope over all pairs; one odd step does not move it."""
    first, second = np.triu_indices(x.size, k=1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def allocator_calls(run: Run, windows: StepWindows) -> AllocatorCalls | None:
    """cudaMalloc, cudaFree and their like inside steady steps; None without runtime calls or step boundaries.

    A capture taken whole as one step says nothing here: its first allocations are in it. Page-locked and managed host
    memory is left out: it is not what the caching allocator manages.
    """
    calls = run.table("launches")
    steps = windows.steady.group_by("rank").len("steps")
    if calls.is_empty() or steps.is_empty() or windows.source == "window":
        return None
    wanted = where_name(of_kind(calls, "alloc", "free"), lambda name: not _HOST_MEMORY.search(name))
    inside = in_steady(wanted, windows, host=True)
    per_rank = _per_rank(inside, steps)
    worst = per_rank.sort(["ms", "rank"], descending=[True, False]).row(0, named=True)
    step_ms = mean_step_ms(windows)
    return AllocatorCalls(
        mallocs_per_step=worst["mallocs"],
        frees_per_step=worst["frees"],
        ms_per_step=worst["ms"],
        worst_rank=worst["rank"],
        share=worst["ms"] / step_ms if step_ms > 0 else 0.0,
    )


def _per_rank(inside: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for rank, count in steps.sort("rank").iter_rows():
        mine = inside.filter(pl.col("rank") == rank)
        kinds = mine["kind"].cast(pl.String)
        rows.append(
            {
                "rank": rank,
                "mallocs": float((kinds == "alloc").sum()) / count,
                "frees": float((kinds == "free").sum()) / count,
                "ms": busy_ns(mine) / count / NS_PER_MS,
            }
        )
    return pl.DataFrame(rows)
