"""Time the training thread waits for the next batch, and how much of it the device was idle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.host_names import is_loader, loader_in_process
from ddiag.analysis.host_spans import loader_spans
from ddiag.analysis.intervals import Intervals, subtract
from ddiag.analysis.names import spans_union, times
from ddiag.analysis.per_step import (
    NS_PER_MS,
    device_windows,
    host_windows,
    mean_step_ms,
    ms_per_step,
    ranks_with_steps,
    step_of,
)
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import InputWait

_SPIKE = 3.0
"""A wait this many times the lower quartile of waits (with two workers half of all waits are spikes) …"""
_SPIKE_MS = 1.0
"""… and this long …"""
_TALL = 0.2
"""… and not far below the highest waits is a spike: a busy machine makes small ones."""
_REGULAR = 0.8
"""Share of distances between spikes that must be the same: now and then one fails to come, or one more does."""


def input_wait(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> InputWait | None:
    """Input wait per rank; None when no rank shows a loader."""
    rows, waits = [], []
    for rank in ranks_with_steps(windows):
        spans = loader_spans(run, rank)
        if spans.is_empty() or rank not in acts:
            continue
        waits.append(_waits(spans, windows.table.filter(pl.col("rank") == rank)))
        rows.append(_of_rank(rank, windows, spans_union(spans), acts[rank]))
    if not rows:
        return None
    per_rank = pl.DataFrame(rows, schema_overrides={"rank": pl.Int32})
    every = pl.concat(waits)
    return InputWait(
        per_rank=per_rank,
        wait_ms=_mean(per_rank, "wait_ms"),
        stall_ms=_mean(per_rank, "stall_ms"),
        stall_share=_mean(per_rank, "stall_share"),
        single_process=_single_process(run),
        spike_period=_spike_period(every.join(windows.steady.select("rank", "step"), on=["rank", "step"])),
        waits=every,
        iterator=_iterator(run),
    )


def _of_rank(rank: int, windows: StepWindows, waits: Intervals, act: RankActivity) -> dict[str, float]:
    """Host wait and device stall per steady step; without a device the wait itself stalls the rank."""
    stalled = act.idle.input if act.idle is not None else subtract(waits, act.busy)
    stall_ms, step_ms = ms_per_step(stalled, device_windows(windows, rank)), mean_step_ms(windows, rank)
    return {
        "rank": rank,
        "wait_ms": ms_per_step(waits, host_windows(windows, rank)),
        "stall_ms": stall_ms,
        "stall_share": stall_ms / step_ms if step_ms > 0 else 0.0,
    }


def _waits(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Each wait with its step; waits outside the steps are left out."""
    table = spans.select("rank", "start_ns", "end_ns").with_columns(step_of(steps, times(spans, "start_ns")))
    length = (pl.col("end_ns") - pl.col("start_ns")) / NS_PER_MS
    kept = table.filter(pl.col("step").is_not_null())
    return kept.select("rank", "step", "start_ns", "end_ns", length.alias("wait_ms")).sort("start_ns")


def _single_process(run: Run) -> bool | None:
    """Whether batches are made in the training process, by the loader's workers, its class or its frames."""
    workers = run.table("step_summaries")["loader_workers"].drop_nulls()
    if len(workers):
        return workers.max() == 0
    names = run.table("ops")["name"].unique().drop_nulls().to_list()
    seen = {loader_in_process(name) for name in names} - {None}
    return seen.pop() if len(seen) == 1 else None


def _iterator(run: Run) -> str:
    """The commonest loader span; one that names the loader's class is preferred to a Python frame."""
    ops = run.table("ops")
    names = ops.filter(pl.col("kind") != "gpu_annotation")["name"].cast(pl.String).value_counts(sort=True)
    loaders = [name for name in names["name"].drop_nulls().to_list() if is_loader(name)]
    return next((name for name in loaders if ".py(" not in name), loaders[0] if loaders else "")


def _spike_period(waits: pl.DataFrame) -> int | None:
    """Every how many steps the wait spikes, when the spikes of each rank are as good as equally far apart."""
    found = []
    for _, mine in waits.group_by("rank"):
        per_step = mine.group_by("step").agg(pl.col("wait_ms").sum()).sort("step")
        wait_ms, step = per_step["wait_ms"].to_numpy(), per_step["step"].to_numpy()
        low, high = np.quantile(wait_ms, (0.25, 0.95))
        spikes = step[wait_ms > max(_SPIKE * low, _SPIKE_MS, _TALL * high)]
        distances, counts = np.unique(np.diff(spikes), return_counts=True)
        usual = int(counts.argmax()) if counts.size else 0
        if spikes.size >= 3 and distances[usual] > 1 and counts[usual] >= _REGULAR * counts.sum():
            found.append(int(distances[usual]))
    agreed = bool(found) and len(set(found)) == 1
    return found[0] if agreed else None


def _mean(table: pl.DataFrame, column: str) -> float:
    value = table[column].mean()
    return float(value) if isinstance(value, (int, float)) else 0.0
