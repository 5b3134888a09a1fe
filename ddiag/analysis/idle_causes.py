"""Why a device was idle: every gap between its pieces of work, divided into input, sync, host and the rest.

*Input*: the training thread was in the data loader. *Sync*: what a blocking call cost. While it waits for a busy device
the host issues nothing and loses its lead; without the call everything after it would have been issued earlier by as
long as it blocked. So the gaps that follow it are its doing, up to that time, and only until the host leads again.
*Host*: the next work was launched only after the device had run dry. *Other*: the next work was already queued
(dependency on another stream, launch latency), or no launch was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ddiag.analysis.host_spans import blocking_calls, loader_spans
from ddiag.analysis.intervals import EMPTY, Intervals, Times, covered, intersect, subtract, union
from ddiag.analysis.names import spans_union, times
from ddiag.analysis.rank_rows import rows_of
from ddiag.model.run import Run

_LEAD_NS = 100_000
"""Work that starts this long after its launch was waiting in a queue: the host leads (launching takes 5-25 µs)."""
_SIGNIFICANT_NS = 50_000
"""A call that blocked this long has made the host lose its lead."""


@dataclass(frozen=True)
class IdleCauses:
    """Disjoint intervals that add up to all idle time inside the captures of one rank."""

    input: Intervals
    sync: Intervals
    host: Intervals
    other: Intervals
    gaps: pl.DataFrame
    """Every gap of the device, in time order: start_ns, end_ns, late (the next work was launched only after the gap had
    begun; null when no launch was recorded)."""
    syncs: pl.DataFrame
    """Blocking calls of threads that issue work: tid, name, start_ns, end_ns, stall_ns (device idle it caused)."""


def idle_causes(run: Run, rank: int, busy: Intervals, work: pl.DataFrame) -> IdleCauses:
    """Attribute the idle time of *rank*, whose device was *busy* with *work* (see :func:`device_work`)."""
    idle = subtract(spans_union(rows_of(run, "captures", rank)), busy)
    gaps = _gaps(idle, work)
    in_loader = intersect(idle, spans_union(loader_spans(run, rank)))
    rest = subtract(idle, in_loader)
    waiting_for_host = spans_union(gaps.filter(pl.col("late").fill_null(value=True)))
    sync, syncs = _sync(blocking_calls(run, rank), intersect(rest, waiting_for_host), busy, work)
    rest = subtract(rest, sync)
    host = intersect(rest, spans_union(gaps.filter("late")))
    return IdleCauses(in_loader, sync, host, subtract(rest, host), gaps, syncs)


def _gaps(idle: Intervals, work: pl.DataFrame) -> pl.DataFrame:
    """The gaps, each with whether the work that ended it was launched only after it had begun.

    A gap that nothing ends was left by a host that issued nothing any more: late, if launches were recorded at all.
    """
    launch = work["launch_start_ns"]
    following = np.searchsorted(times(work, "start_ns"), idle[:, 1], side="left")
    launched = launch.gather(np.minimum(following, max(work.height - 1, 0))) if work.height else launch.clear()
    table = pl.DataFrame({"start_ns": idle[:, 0], "end_ns": idle[:, 1]})
    if not work.height:
        return table.with_columns(late=pl.lit(None, dtype=pl.Boolean))
    recorded = launch.null_count() < work.height
    return table.with_columns(
        late=pl.when(pl.Series(following >= work.height))
        .then(pl.lit(True if recorded else None, dtype=pl.Boolean))
        .otherwise(launched >= table["start_ns"])
    )


def _sync(calls: pl.DataFrame, idle: Intervals, busy: Intervals, work: pl.DataFrame) -> tuple[Intervals, pl.DataFrame]:
    """The part of *idle* that blocking calls caused, and each call's share of it."""
    start, end = times(calls, "start_ns"), times(calls, "end_ns")
    if not len(idle) or not calls.height:
        return EMPTY, calls.with_columns(stall_ns=pl.lit(0, dtype=pl.Int64))
    blocked = covered(busy, start, end)
    first = np.full(start.size, idle[0, 0])
    lost_from = covered(idle, first, start)
    lost_to = np.minimum(covered(idle, first, _lead_regained(end, work)), lost_from + blocked)
    guilty = lost_to > lost_from
    spans = union(_at_idle(idle, lost_from[guilty]), _at_idle_end(idle, lost_to[guilty]))
    lost = intersect(idle, spans)
    return lost, calls.with_columns(pl.Series("stall_ns", _owned(lost, start, blocked)))


def _owned(lost: Intervals, start: Times, blocked: Times) -> Times:
    """Idle time of each call: what lies between it and the next one that blocked for long.

    Calls that follow at once (reading a second value) find the device idle already and block for next to nothing.
    """
    long = np.flatnonzero(blocked >= _SIGNIFICANT_NS)
    candidates = long if long.size else np.arange(start.size)
    owner = candidates[np.maximum(np.searchsorted(start[candidates], lost[:, 0], side="right") - 1, 0)]
    owned = np.zeros(start.size, dtype=np.int64)
    np.add.at(owned, owner, lost[:, 1] - lost[:, 0])
    return owned


def _lead_regained(after: Times, work: pl.DataFrame) -> Times:
    """For each time: start of the first work launched later that had to queue; of the next work without launches.

    Where nothing follows, time 0: a call at the very end stalls nothing.
    """
    launched = work.filter(pl.col("launch_start_ns").is_not_null()).sort("launch_start_ns")
    if launched.is_empty():
        issue, start = times(work, "start_ns"), times(work, "start_ns")
        queued = np.ones(start.size, dtype=bool)
    else:
        issue, start = times(launched, "launch_start_ns"), times(launched, "start_ns")
        queued = start - issue > _LEAD_NS
    if not issue.size:
        return np.zeros_like(after)
    leads = np.append(start[queued], start.max())
    found = leads[np.searchsorted(issue[queued], after, side="left")]
    return np.where(after > issue[-1], 0, np.maximum(found, after))


def _at_idle(idle: Intervals, amount: Times) -> Times:
    """Time from which on *amount* ns of *idle* have passed (the start of the next idle stretch at a boundary)."""
    passed = np.cumsum(idle[:, 1] - idle[:, 0])
    index = np.minimum(np.searchsorted(passed, amount, side="right"), len(idle) - 1)
    at: Times = idle[index, 1] - (passed[index] - amount)
    return at


def _at_idle_end(idle: Intervals, amount: Times) -> Times:
    """Time at which *amount* ns of *idle* have just passed (the end of the stretch at a boundary)."""
    passed = np.cumsum(idle[:, 1] - idle[:, 0])
    index = np.minimum(np.searchsorted(passed, amount, side="left"), len(idle) - 1)
    at: Times = idle[index, 1] - (passed[index] - amount)
    return at
