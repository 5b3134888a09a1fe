"""When each recorded rank computed, communicated and waited, from the phases of its training thread.

The training thread computes in forward, backward, clip, zero_grad and the optimizer, except while it is known to wait:
in ``Work.wait``, for a sharded unit, and at the end of backward, from the last reduction issued until the reductions
of that pass are over (the reducer waits for them in C++, where no mark can be set).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.intervals import EMPTY, Intervals, intersect, merge, subtract, union
from ddiag.analysis.names import spans_union, times
from ddiag.analysis.rank_rows import rows_of
from ddiag.analysis.recorded.marks import in_phase
from ddiag.model.run import Run

COMPUTING = ("forward", "backward", "optimizer", "clip", "zero_grad", "h2d")
WAITING = ("wait", "wait_unshard")
_NOT_COMPUTING = ("input", "checkpoint", "evaluation", "logging", "compile", "gc", "alloc_retry", "swap_in", "swap_out")


def recorded_activity(run: Run) -> dict[int, RankActivity]:
    """The activity of every recorded rank."""
    return {rank: _of_rank(run, rank) for rank in sorted(run.table("ranks")["rank"].to_list())}


def _of_rank(run: Run, rank: int) -> RankActivity:
    calls = rows_of(run, "collectives", rank).filter(pl.col("end_ns") >= pl.col("start_ns"))
    waits = merge(in_phase(run, rank, *WAITING), _tails(calls, in_phase(run, rank, "backward")))
    comm = merge(spans_union(calls) if calls.height else EMPTY, in_phase(run, rank, "wait"))
    idle = merge(in_phase(run, rank, *_NOT_COMPUTING), waits)
    compute = subtract(in_phase(run, rank, *COMPUTING), idle)
    return RankActivity(compute, comm, comm[:0], merge(compute, comm), on_device=False)


def _tails(calls: pl.DataFrame, passes: Intervals) -> Intervals:
    """From the last asynchronous call issued in a backward pass until all issued in it are over, inside the pass."""
    calls = calls.filter(pl.col("asynchronous") & (pl.col("source") == "host"))
    if calls.is_empty() or not len(passes):
        return EMPTY
    issued, over = times(calls, "enqueue_ns"), times(calls, "end_ns")
    number = np.searchsorted(passes[:, 0], issued, side="right") - 1
    inside = (number >= 0) & (issued < passes[np.maximum(number, 0), 1])
    last = np.full(len(passes), np.iinfo(np.int64).min)
    ends = last.copy()
    np.maximum.at(last, number[inside], issued[inside])
    np.maximum.at(ends, number[inside], over[inside])
    known = ends > last
    return intersect(union(last[known], ends[known]), passes)
