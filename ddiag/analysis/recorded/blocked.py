"""How much of a recording's communication the training stood still for, though compute could have run beside it.

Only calls that all members were seen in count, and of those the time after the last member had come: waiting for a late
rank is not communication. What evaluation, checkpoints and logging communicate is theirs. Of the rest, what reduces
gradients could run beside backward: calls in a backward pass that are waited for one by one, and those between backward
and the update. Asynchronous ones in backward (DDP's buckets) are issued to run beside it; whether they do is a matter
of bucket sizes, as it is where a pass has one reduction only (all of ZeRO's in one bucket). A group that forward waits
for carries activations (tensor parallelism, synchronised batch norm), which nothing can run beside.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ddiag.analysis.backward import MIN_GRADIENT_BYTES, backward
from ddiag.analysis.intervals import Intervals, covered, intersect, subtract, union
from ddiag.analysis.names import times
from ddiag.analysis.rank_walk import by_rank
from ddiag.analysis.recorded.activity import stood_still
from ddiag.analysis.recorded.marks import in_phase
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Collectives
from ddiag.model.signals_recorded import StoodStill

_NOT_TRAINING = ("evaluation", "checkpoint", "logging")
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_FEWEST = 2
"""Reductions of gradients per step, from which one could run while others' gradients are still being computed."""
_NS_PER_MS = 1e6


def blocked(run: Run, windows: StepWindows, collectives: Collectives) -> StoodStill | None:
    """None where no call was seen on all of its members, or no step is steady."""
    whole = collectives.table.filter(
        (pl.col("ranks_matched") == pl.col("group_size"))
        & (pl.col("group_size") > 1)
        & (pl.col("bytes") > 0)
        & pl.col("transfer_ms").is_not_null()
    )
    if whole.is_empty():
        return None
    in_forward = whole.filter(pl.col("phase") == "forward")["comm"].unique().to_list()
    mine = dict(by_rank(whole))
    rows = []
    for rank, steps in by_rank(windows.table.filter("steady")):
        start, end = times(steps, "start_ns"), times(steps, "end_ns")
        calls = mine.get(rank, whole.clear())
        alone = calls.filter(
            ~pl.col("comm").is_in(in_forward).fill_null(value=False) & _could_overlap(run, rank, calls)
        )
        if alone.height < _FEWEST * len(start):
            alone = alone.clear()
        others = in_phase(run, rank, *_NOT_TRAINING)
        moved, awaited = (subtract(_moving(some), others) for some in (calls, alone))
        stopped = intersect(awaited, stood_still(run, rank))
        sums = [int(covered(spans, start, end).sum()) for spans in (moved, stopped)]
        rows.append([total / len(start) / _NS_PER_MS for total in sums])
    if not rows:
        return None
    transfer_ms, blocked_ms = (float(mean) for mean in np.mean(rows, axis=0))
    return StoodStill(transfer_ms, blocked_ms)


def _could_overlap(run: Run, rank: int, calls: pl.DataFrame) -> pl.Series:
    """Reduces gradients; issued in backward and waited for at once, or between backward and the update."""
    host = backward(run, rank)
    at = times(calls.select(at=pl.coalesce("enqueue_ns", "start_ns")), "at")
    awaited = ~calls["asynchronous"].fill_null(value=True).to_numpy()
    sized = (calls["op"].is_in(_REDUCTIONS) & (calls["bytes"] >= MIN_GRADIENT_BYTES)).to_numpy()
    return pl.Series(((host.within(at) & awaited) | host.after(at)) & sized, dtype=pl.Boolean)


def _moving(calls: pl.DataFrame) -> Intervals:
    """When these calls moved data: from the arrival of the last member on."""
    start, end = times(calls, "start_ns"), times(calls, "end_ns")
    waited = np.rint(calls["wait_ms"].fill_null(0.0).to_numpy() * _NS_PER_MS).astype(np.int64)
    return union(np.clip(start + waited, start, end), end)
