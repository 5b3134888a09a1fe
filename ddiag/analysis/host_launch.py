"""How the host keeps the device fed: launches, the gaps between kernels, and what the host did in the long ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.host_spans import blocking_calls, issuing_threads, loader_spans
from ddiag.analysis.idle_causes import IdleCauses
from ddiag.analysis.intervals import Intervals, Times, covered, subtract
from ddiag.analysis.memo import once_per_run
from ddiag.analysis.names import of_kind, spans_union, times
from ddiag.analysis.per_step import (
    NS_PER_MS,
    device_windows,
    host_windows,
    mean_step_ms,
    ms_per_step,
    ranks_with_steps,
    step_of,
)
from ddiag.analysis.rank_rows import DEVICE_WORK, rows_of
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import HostLaunch

_LONG_NS = 5_000_000
_NOTICEABLE_NS = 1_000_000
"""A span shorter than this cannot explain a long gap."""
_TELLING_NS = 20_000
"""Kernels this long outlive an asynchronous launch call."""
_ENOUGH_KERNELS = 20
_GAP_SCHEMA = {
    "rank": pl.Int32,
    "step": pl.Int64,
    "start_ns": pl.Int64,
    "gap_ms": pl.Float64,
    "host_ms_in_calls": pl.Float64,
    "top_op": pl.String,
}


def host_launch(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> HostLaunch | None:
    """Launch behaviour, mean over ranks; None when launches (or kernels) were not recorded.

    Gaps are those of all streams of a rank together: idle means that nothing at all ran.
    """
    ranks = [rank for rank in ranks_with_steps(windows) if _knows_launches(acts.get(rank))]
    if not ranks:
        return None
    rows = [_of_rank(run, windows, rank, acts[rank].idle) for rank in ranks]
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    step_ms = means.pop("step_ms")
    gaps = [_long_gaps(run, windows, rank, acts[rank].idle) for rank in ranks]
    return HostLaunch(
        **means,
        median_kernel_us=_median_kernel_us(run, windows, ranks),
        launch_gap_share=means["launch_gap_ms"] / step_ms if step_ms > 0 else 0.0,
        long_gaps=pl.concat(gaps),
        blocking_launch_share=_blocking_launch_share(run, windows, ranks),
    )


def _knows_launches(act: RankActivity | None) -> bool:
    """A device without any gap was fed in time, whoever launched the work."""
    if act is None or act.idle is None:
        return False
    gaps = act.idle.gaps
    return gaps.is_empty() or gaps["late"].null_count() < gaps.height


def _of_rank(run: Run, windows: StepWindows, rank: int, idle: IdleCauses | None) -> dict[str, float]:
    """Means over the steady steps of *rank*."""
    gaps = idle.gaps if idle is not None else pl.DataFrame(schema={"late": pl.Boolean})
    device, host = device_windows(windows, rank), host_windows(windows, rank)
    calls = rows_of(run, "launches", rank)
    return {
        "launches_per_step": _count(of_kind(calls, "launch", "graph"), host),
        "graph_launches_per_step": _count(of_kind(calls, "graph"), host),
        "launch_gap_ms": ms_per_step(spans_union(gaps.filter("late")), device),
        "kernel_wait_ms": ms_per_step(spans_union(gaps.filter(~pl.col("late"))), device),
        "host_busy_share": _busy_share(run, rank, host),
        "step_ms": mean_step_ms(windows, rank),
    }


def _count(calls: pl.DataFrame, steps: tuple[Times, Times]) -> float:
    at = np.sort(times(calls, "start_ns"))
    return float((np.searchsorted(at, steps[1]) - np.searchsorted(at, steps[0])).mean())


def _busy_share(run: Run, rank: int, steps: tuple[Times, Times]) -> float:
    """Part of the steps in which a thread that issues work is inside calls, other than waiting for device or input."""
    working = subtract(_in_calls(run, rank), spans_union(blocking_calls(run, rank)))
    length = int((steps[1] - steps[0]).sum())
    return float(covered(working, *steps).sum()) / length if length else 0.0


@once_per_run
def _in_calls(run: Run, rank: int) -> Intervals:
    """When a thread that issues work was inside an operator or a runtime call, outside the loader."""
    threads = issuing_threads(run, rank)
    columns = ["start_ns", "end_ns"]
    on_thread = pl.col("tid").is_in(threads)
    calls = rows_of(run, "launches", rank).filter(on_thread).select(columns)
    operators = of_kind(rows_of(run, "ops", rank).filter(on_thread), "op").select(columns)
    return subtract(spans_union(pl.concat([calls, operators])), spans_union(loader_spans(run, rank)))


def _median_kernel_us(run: Run, windows: StepWindows, ranks: list[int]) -> float:
    """Median length of the compute kernels that ran in steady steps, over all ranks, in µs."""
    lengths = []
    for rank in ranks:
        mine = of_kind(rows_of(run, "kernels", rank), "compute")
        start, end = times(mine, "start_ns"), times(mine, "end_ns")
        lengths.append((end - start)[_inside(start, *device_windows(windows, rank))])
    pooled = np.concatenate(lengths)
    return float(np.median(pooled)) / 1e3 if pooled.size else 0.0


def _blocking_launch_share(run: Run, windows: StepWindows, ranks: list[int]) -> float | None:
    """Share of launches that return only after their kernel has ended; None with too few kernels that can tell.

    A kernel of a few µs may be over before any launch call returns, so only longer ones are asked.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    blocked = asked = 0
    for rank in ranks:
        work = rows_of(run, DEVICE_WORK, rank)
        mine = work.filter((pl.col("launch_kind") == "launch") & (length >= _TELLING_NS))
        begin, until = host_windows(windows, rank)
        mine = mine.filter(pl.Series(_inside(times(mine, "launch_start_ns"), begin, until)))
        blocked += int((mine["launch_end_ns"] >= mine["end_ns"]).sum())
        asked += mine.height
    return blocked / asked if asked >= _ENOUGH_KERNELS else None


def _inside(at: Times, begin: Times, until: Times) -> npt.NDArray[np.bool_]:
    """Which times lie in one of the windows, which do not overlap."""
    return np.searchsorted(np.sort(begin), at, side="right") > np.searchsorted(np.sort(until), at, side="right")


def _long_gaps(run: Run, windows: StepWindows, rank: int, idle: IdleCauses | None) -> pl.DataFrame:
    """Gaps of steady steps in which the device waited over 5 ms for a host that was neither loading nor blocked."""
    if idle is None:
        return pl.DataFrame(schema=_GAP_SCHEMA)
    start, end = times(idle.gaps, "start_ns"), times(idle.gaps, "end_ns")
    waited = covered(idle.host, start, end)
    chosen = _inside(start, *device_windows(windows, rank)) & (waited > _LONG_NS)
    start, end, waited = start[chosen], end[chosen], waited[chosen]
    steps = windows.table.filter(pl.col("rank") == rank).with_columns(host_start_ns="start_ns", host_end_ns="end_ns")
    return pl.DataFrame(
        {
            "rank": [rank] * start.size,
            "step": step_of(steps, start),
            "start_ns": start,
            "gap_ms": waited / NS_PER_MS,
            "host_ms_in_calls": covered(_in_calls(run, rank), start, end) / NS_PER_MS,
            "top_op": _top_ops(run, rank, start, end),
        },
        schema=_GAP_SCHEMA,
    )


def _top_ops(run: Run, rank: int, start: Times, end: Times) -> list[str]:
    """The span that fills most of each gap; one that goes far beyond it (a whole training loop) does not count."""
    if not start.size:
        return []
    length = pl.col("end_ns") - pl.col("start_ns")
    on_thread = pl.col("tid").is_in(issuing_threads(run, rank))
    columns = [pl.col("name").cast(pl.String), "start_ns", "end_ns"]
    host = rows_of(run, "ops", rank).filter(
        on_thread & (pl.col("kind") != "gpu_annotation") & (length >= _NOTICEABLE_NS)
    )
    calls = rows_of(run, "launches", rank).filter(on_thread & (length >= _NOTICEABLE_NS))
    spans = pl.concat([host.select(columns), calls.select(columns)])
    span_start, span_end, names = times(spans, "start_ns"), times(spans, "end_ns"), spans["name"].to_list()
    found = []
    for gap_start, gap_end in zip(start, end, strict=True):
        overlap = np.minimum(span_end, gap_end) - np.maximum(span_start, gap_start)
        overlap[span_end - span_start > 2 * (gap_end - gap_start)] = 0
        best = int(overlap.argmax()) if overlap.size else -1
        found.append(names[best] if best >= 0 and overlap[best] >= _NOTICEABLE_NS else "")
    return found
