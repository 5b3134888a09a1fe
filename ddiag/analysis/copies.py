"""Copies between host and device: how much, how fast, what they cost, and whether they look like offloading."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.device_work import device_work
from ddiag.analysis.intervals import Intervals, merge, subtract, total
from ddiag.analysis.names import spans_union
from ddiag.analysis.offload import LARGE_BYTES, offload_copies
from ddiag.analysis.optimizer_spans import cpu_optimizer_spans
from ddiag.analysis.steady_work import NS_PER_MS, in_steady, mean_step_ms, rank_union, step_count
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Copies

_HOST_LINK = ("h2d", "d2h")


def copies(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> Copies | None:
    """Host<->device copies of steady steps; None when the run has no device copies at all.

    Bandwidth is bytes over the time in which at least one such copy ran; h2d_gbps and d2h_gbps are over copies of 1 MiB
    and more, so that start-up cost does not look like a slow link. A copy is exposed while the device does nothing but
    copy to or from the host.
    """
    if not run.has("copies") or not step_count(windows):
        return None
    rows = in_steady(run.table("copies").with_columns(pl.col("direction").cast(pl.String)), windows)
    rows = rows.filter(pl.col("direction").is_in(_HOST_LINK))
    busy = _other_work(run, acts)
    steps = step_count(windows)
    offload = offload_copies(run, rows, windows)
    step_ms = mean_step_ms(windows)
    sides = [rows.filter(pl.col("direction") == direction) for direction in _HOST_LINK]
    busiest_ms = max(_union_ns(side) for side in sides) / steps / NS_PER_MS
    large = rows.filter(pl.col("bytes") >= LARGE_BYTES)
    return Copies(
        table=_table(rows, busy, steps),
        h2d_gbps=_gbps(large.filter(pl.col("direction") == "h2d")),
        d2h_gbps=_gbps(large.filter(pl.col("direction") == "d2h")),
        pageable_share=_pageable_share(rows),
        pageable_exposed_ms=_exposed_ms(rows.filter(~pl.col("pinned")), busy, steps),
        exposed_ms=_exposed_ms(rows, busy, steps),
        link_busy_share=busiest_ms / step_ms if step_ms > 0 else 0.0,
        bytes_per_step=round(int(rows["bytes"].sum() or 0) / steps),
        offload=offload.kind,
        offload_exposed_ms=_exposed_ms(offload.rows, busy, steps),
        cpu_optimizer_ms=_cpu_optimizer_ms(run, windows, acts),
        per_rank=_per_rank(large, windows),
    )


def _other_work(run: Run, acts: Mapping[int, RankActivity]) -> dict[int, Intervals]:
    """What a device does besides copying to or from the host."""
    inner = run.table("copies").filter(~pl.col("direction").cast(pl.String).is_in(_HOST_LINK))
    return {
        rank: merge(act.compute, act.comm, spans_union(inner.filter(pl.col("rank") == rank)))
        for rank, act in acts.items()
    }


def _union_ns(rows: pl.DataFrame) -> int:
    return sum(total(rank_union(group)) for _, group in rows.group_by("rank"))


def _exposed_ms(rows: pl.DataFrame, busy: Mapping[int, Intervals], steps: int) -> float:
    exposed = sum(
        total(subtract(rank_union(group), busy[rank])) for (rank,), group in rows.group_by("rank") if rank in busy
    )
    return exposed / steps / NS_PER_MS


def _gbps(rows: pl.DataFrame) -> float | None:
    """Bytes per ns, i.e. GB/s; None without bytes."""
    known = rows.filter(pl.col("bytes") > 0)
    ns = _union_ns(known)
    return int(known["bytes"].sum()) / ns if ns else None


def _pageable_share(rows: pl.DataFrame) -> float | None:
    """Bytes of pageable copies over all bytes; None unless the kind of memory is known for most bytes."""
    total_bytes = int(rows["bytes"].sum() or 0)
    known = rows.filter(pl.col("pinned").is_not_null())
    known_bytes = int(known["bytes"].sum() or 0)
    if not total_bytes or known_bytes < total_bytes / 2:
        return None
    return int(known.filter(~pl.col("pinned"))["bytes"].sum() or 0) / known_bytes


def _table(rows: pl.DataFrame, busy: Mapping[int, Intervals], steps: int) -> pl.DataFrame:
    found = [
        {
            "direction": direction,
            "pinned": pinned,
            "count_per_step": group.height / steps,
            "bytes_per_step": round(int(group["bytes"].sum() or 0) / steps),
            "ms_per_step": _union_ns(group) / steps / NS_PER_MS,
            "gbps": _gbps(group),
            "exposed_ms": _exposed_ms(group, busy, steps),
        }
        for (direction, pinned), group in rows.group_by("direction", "pinned")
    ]
    schema = {
        "direction": pl.String,
        "pinned": pl.Boolean,
        "count_per_step": pl.Float64,
        "bytes_per_step": pl.Int64,
        "ms_per_step": pl.Float64,
        "gbps": pl.Float64,
        "exposed_ms": pl.Float64,
    }
    return pl.DataFrame(found, schema=schema).sort("ms_per_step", descending=True)


def _cpu_optimizer_ms(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> float:
    """Host time per step in an optimizer that updates on the CPU, while the device idles."""
    spans = in_steady(cpu_optimizer_spans(run, device_work(run)), windows, host=True)
    idle = sum(
        total(subtract(rank_union(group), acts[rank].busy)) for (rank,), group in spans.group_by("rank") if rank in acts
    )
    return idle / step_count(windows) / NS_PER_MS


def _per_rank(large: pl.DataFrame, windows: StepWindows) -> pl.DataFrame:
    """Bandwidth of each rank over large copies, where launch latency does not count."""
    rows = [
        {"rank": rank, **{f"{direction}_gbps": _gbps(_one_way(large, rank, direction)) for direction in _HOST_LINK}}
        for rank in windows.steady["rank"].unique().sort().to_list()
    ]
    return pl.DataFrame(rows, schema={"rank": pl.Int32, "h2d_gbps": pl.Float64, "d2h_gbps": pl.Float64})


def _one_way(rows: pl.DataFrame, rank: int, direction: str) -> pl.DataFrame:
    return rows.filter((pl.col("rank") == rank) & (pl.col("direction") == direction))
