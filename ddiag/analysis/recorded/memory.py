"""Memory over the whole run, from every step summary: the device's, or the host's where there is no device."""

from __future__ import annotations

import numpy as np
import polars as pl

from ddiag.analysis.memory import theil_sen, thinned
from ddiag.model.run import Run
from ddiag.model.signals import Memory

_WARM_UP = 0.2
"""First part of the run, in which pools and caches fill up …"""
_MIN_WARM_UP = 5
"""… at least this many steps of it."""
_POINTS = 200
"""Steps the slope is fitted to: all pairs of them are looked at."""
_ENOUGH_STEPS = 8


def recorded_memory(run: Run) -> Memory | None:
    """Peak, timeline and trend; None when no step says anything of memory."""
    steps = run.table("step_summaries")
    device = steps.filter(pl.col("device_allocated_bytes").is_not_null())
    on_device = device.height > 0
    used = device if on_device else steps.filter(pl.col("rss_bytes").is_not_null())
    if used.is_empty():
        return None
    events = run.table("memory").filter(pl.col("device") != "cpu" if on_device else pl.col("device") == "cpu")
    growth, fitted = _growth(used, "device_allocated_bytes" if on_device else "rss_bytes")
    per_rank = _peaks(run, used, on_device=on_device)
    return Memory(
        per_rank=per_rank,
        timeline=thinned(events.sort("rank", "device", "ts_ns")),
        peak_share=_peak_share(per_rank) if on_device else None,
        reserved_unused_share=_unused(device) if on_device else None,
        growth_bytes_per_step=growth,
        growth_steps=fitted,
    )


def _peaks(run: Run, used: pl.DataFrame, *, on_device: bool) -> pl.DataFrame:
    if on_device:
        peak = pl.coalesce("device_peak_allocated_bytes", "device_allocated_bytes").max()
        reserved = pl.coalesce("device_peak_reserved_bytes", "device_reserved_bytes").max()
        capacity = run.table("ranks").select("rank", pl.col("device_memory_bytes").alias("capacity_bytes"))
    else:
        peak, reserved = pl.col("rss_peak_bytes").max(), pl.lit(None, dtype=pl.Int64)
        capacity = _host_capacity(run, used)
    found = used.group_by("rank").agg(peak.alias("peak_allocated_bytes"), reserved.alias("peak_reserved_bytes"))
    name = pl.lit("cuda" if on_device else "cpu").alias("device")
    return (
        found.join(capacity, on="rank", how="left")
        .sort("rank")
        .select("rank", name, "peak_allocated_bytes", "peak_reserved_bytes", "capacity_bytes")
    )


def _host_capacity(run: Run, used: pl.DataFrame) -> pl.DataFrame:
    """What a rank may grow to: what it has, and its share of what was free on the host at last."""
    free = run.table("counters").filter(pl.col("name").cast(pl.String).str.ends_with("memory.available_bytes"))
    hosts = run.table("ranks").select("rank", pl.len().over("host").alias("ranks"))
    last = used.sort("end_ns").group_by("rank").agg(pl.col("rss_bytes").last())
    available = float(free.sort("ts_ns")["value"][-1]) if free.height and free["name"].n_unique() == 1 else None
    share = pl.lit(available, dtype=pl.Float64) / pl.col("ranks")
    return last.join(hosts, on="rank").select(
        "rank", (pl.col("rss_bytes") + share).cast(pl.Int64).alias("capacity_bytes")
    )


def _peak_share(per_rank: pl.DataFrame) -> float | None:
    share = per_rank.select(
        (pl.coalesce("peak_reserved_bytes", "peak_allocated_bytes") / pl.col("capacity_bytes")).max()
    ).item()
    return None if share is None else float(share)


def _unused(device: pl.DataFrame) -> float | None:
    """Reserved and not used when most was reserved, on the rank with most of it."""
    known = device.filter(pl.col("device_peak_reserved_bytes") > 0)
    used = pl.col("device_peak_allocated_bytes").max() / pl.col("device_peak_reserved_bytes").max()
    shares = known.group_by("rank").agg((1.0 - used).alias("unused"))["unused"].drop_nulls().to_list()
    return max(shares, default=None)


def _growth(used: pl.DataFrame, column: str) -> tuple[float | None, int | None]:
    """(bytes per step, steps it was fitted over) on the rank where memory grows most, after warm-up."""
    slopes = []
    for _, mine in used.sort("step").group_by("rank"):
        skipped = max(_MIN_WARM_UP, int(_WARM_UP * mine.height))
        later = mine.slice(skipped)
        if later.height < _ENOUGH_STEPS:
            continue
        at = np.unique(np.linspace(0, later.height - 1, min(_POINTS, later.height)).round().astype(int))
        step, held = later["step"].to_numpy()[at], later[column].to_numpy()[at]
        slopes.append((theil_sen(step.astype(np.float64), held.astype(np.float64)), later.height))
    return max(slopes, key=lambda slope: abs(slope[0])) if slopes else (None, None)
