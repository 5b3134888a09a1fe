"""When each recorded rank computed, communicated and waited, from the phases of its training thread.

The training thread computes in forward, backward, clip, zero_grad and the optimizer, except while it is known to wait:
in ``Work.wait``, for a sharded unit, and at the end of backward, from the last reduction issued until the reductions
of that pass are over (the reducer waits for them in C++, where no mark can be set).

A device's compute is not recorded, and the training thread runs ahead of it. Of calls timed on a device it is known
what the compute stream stands still for: a call that is not asynchronous, and the tail of a backward pass, both in the
device's own time. Beside the others it computes.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.intervals import EMPTY, Intervals, Times, intersect, merge, subtract, union
from ddiag.analysis.memo import once_per_run
from ddiag.analysis.names import spans_union, times
from ddiag.analysis.rank_rows import rows_of
from ddiag.analysis.recorded.marks import in_phase
from ddiag.model.run import Run

COMPUTING = ("forward", "backward", "optimizer", "clip", "zero_grad", "h2d")
WAITING = ("wait", "wait_unshard")
_NOT_COMPUTING = ("input", "checkpoint", "evaluation", "logging", "compile", "gc", "swap_in", "swap_out")


def recorded_activity(run: Run) -> dict[int, RankActivity]:
    """The activity of every recorded rank."""
    return {rank: _of_rank(run, rank) for rank in sorted(run.table("ranks")["rank"].to_list())}


@once_per_run
def stood_still(run: Run, rank: int) -> Intervals:
    """When the training of *rank* stood still for communication, whoever was late for it."""
    calls = _over(run, rank)
    marked = in_phase(run, rank, *WAITING)
    return merge(marked, _tails(calls, in_phase(run, rank, "backward")), _device_stops(calls, run, rank))


def _over(run: Run, rank: int) -> pl.DataFrame:
    return rows_of(run, "collectives", rank).filter(pl.col("end_ns") >= pl.col("start_ns"))


def _of_rank(run: Run, rank: int) -> RankActivity:
    calls = _over(run, rank)
    waits = stood_still(run, rank)
    comm = merge(spans_union(calls) if calls.height else EMPTY, in_phase(run, rank, "wait"))
    idle = merge(in_phase(run, rank, *_NOT_COMPUTING), waits)
    on_device = calls.filter(pl.col("source") == "kernel")
    beside = spans_union(on_device) if on_device.height else EMPTY
    compute = subtract(merge(in_phase(run, rank, *COMPUTING), beside), idle)
    return RankActivity(compute, comm, comm[:0], merge(compute, comm), on_device=False)


def _device_stops(calls: pl.DataFrame, run: Run, rank: int) -> Intervals:
    """What a device's compute stream stands still for: the stream itself waits in a call that is not asynchronous."""
    timed = calls.filter(pl.col("source") == "kernel")
    if timed.is_empty():
        return EMPTY
    waited = timed.filter(~pl.col("asynchronous"))
    own = spans_union(waited) if waited.height else EMPTY
    return merge(own, _device_tails(timed, in_phase(run, rank, "backward")))


def _device_tails(timed: pl.DataFrame, passes: Intervals) -> Intervals:
    """From when the device came to the last asynchronous call issued in a backward pass until all of them are over.

    ``issued_ns`` is when the compute stream came to the call: the last one follows the last gradient.
    """
    calls = timed.filter(pl.col("asynchronous"))
    if calls.is_empty() or not len(passes):
        return EMPTY
    came = "issued_ns" if "issued_ns" in calls.columns else "start_ns"
    last, ends = _last_of_passes(calls, passes, came)
    known = ends > last
    return union(last[known], ends[known])


def _tails(calls: pl.DataFrame, passes: Intervals) -> Intervals:
    """From the last asynchronous call issued in a backward pass until all issued in it are over, inside the pass."""
    calls = calls.filter(pl.col("asynchronous") & (pl.col("source") == "host"))
    if calls.is_empty() or not len(passes):
        return EMPTY
    last, ends = _last_of_passes(calls, passes, "enqueue_ns")
    known = ends > last
    return intersect(union(last[known], ends[known]), passes)


def _last_of_passes(calls: pl.DataFrame, passes: Intervals, begins: str) -> tuple[Times, Times]:
    """For each backward pass: when the last call issued in it began (column *begins*), and when all were over."""
    issued, over = times(calls, "enqueue_ns"), times(calls, "end_ns")
    number = np.searchsorted(passes[:, 0], issued, side="right") - 1
    inside = (number >= 0) & (issued < passes[np.maximum(number, 0), 1])
    last = np.full(len(passes), np.iinfo(np.int64).min)
    ends = last.copy()
    np.maximum.at(last, number[inside], times(calls, begins)[inside])
    np.maximum.at(ends, number[inside], over[inside])
    return last, ends
