"""How much communication the compute hides: per call, and without double counting per rank and step (algorithm D8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.intervals import Intervals, covered, merge, subtract
from ddiag.analysis.names import times
from ddiag.analysis.rank_walk import by_rank
from ddiag.analysis.steps import StepWindows

_PROMPT_NS = 100_000
"""Compute that starts this soon after communication ended was waiting for it (launch latency and a stream event)."""
_PROMPT_SHARE = 0.1
"""The same as a share of the exposed stretch, for long ones and slow hosts."""


@dataclass(frozen=True)
class CommunicationTime:
    """Means over ranks and steady steps, ms per step; unions, so overlapping streams count once."""

    comm_ms: float
    exposed_ms: float
    blocking_ms: float
    step_ms: float


def with_exposure(calls: pl.DataFrame, acts: Mapping[int, RankActivity]) -> pl.DataFrame:
    """Add ``exposed_ms`` (part of the span without compute) and ``exposed_wait_ms`` (that part of the waiting)."""
    parts = []
    for rank, mine in by_rank(calls):
        act = acts.get(rank)
        compute = act.compute if act is not None else np.empty((0, 2), np.int64)
        start, end = times(mine, "start_ns"), times(mine, "end_ns")
        waited = start + (mine["wait_ms"].fill_null(0.0).to_numpy() * 1e6).round().astype(np.int64)
        parts.append(
            mine.with_columns(
                exposed_ms=pl.Series((end - start - covered(compute, start, end)) / 1e6),
                exposed_wait_ms=pl.Series((waited - start - covered(compute, start, waited)) / 1e6),
            )
        )
    found = pl.concat(parts)
    return found.with_columns(exposed_wait_ms=pl.when(pl.col("wait_ms").is_not_null()).then("exposed_wait_ms"))


def communication_time(windows: StepWindows, acts: Mapping[int, RankActivity]) -> CommunicationTime:
    """Communication, its exposed and its blocking part per steady step, as means over ranks."""
    rows = []
    for rank, steps in by_rank(windows.table.filter("steady")):
        act = acts.get(rank)
        if act is None:
            continue
        start, end = times(steps, "start_ns"), times(steps, "end_ns")
        exposed = subtract(act.comm, act.compute)
        sums = [int(covered(spans, start, end).sum()) for spans in (act.comm, exposed, blocking(act))]
        rows.append([total / len(start) / 1e6 for total in (*sums, int((end - start).sum()))])
    mean = np.mean(rows, axis=0) if rows else np.zeros(4)
    return CommunicationTime(*(float(value) for value in mean))


def blocking(act: RankActivity) -> Intervals:
    """Stretches in which only communication runs and the next compute was waiting for it.

    They end with the communication (not because compute began beside it), and compute follows at once.
    """
    alone = subtract(act.comm, merge(act.compute, act.copy))
    if not len(alone) or not len(act.compute):
        return alone[:0]
    ends = alone[:, 1]
    ends_with_comm = np.isin(ends, act.comm[:, 1])
    following = np.searchsorted(act.compute[:, 0], ends, side="left")
    begins = np.append(act.compute[:, 0], np.iinfo(np.int64).max)[following]
    prompt = begins - ends <= np.maximum(_PROMPT_NS, _PROMPT_SHARE * (ends - alone[:, 0]))
    kept: Intervals = alone[ends_with_comm & prompt]
    return kept


def with_resumption(calls: pl.DataFrame, acts: Mapping[int, RankActivity]) -> pl.DataFrame:
    """Add ``resumes``: no compute ran when the call ended, and some began before the rank's next call.

    That compute had waited for the call. Beside backward compute runs on, and in its tail one call follows another.
    """
    parts = []
    for rank, mine in by_rank(calls):
        act = acts.get(rank)
        end = times(mine, "end_ns")
        if act is None or not len(act.compute):
            parts.append(mine.with_columns(resumes=pl.lit(value=True)))
            continue
        beyond = np.iinfo(np.int64).max
        following = np.searchsorted(act.compute[:, 0], end, side="left")
        begins = np.append(act.compute[:, 0], beyond - 1)[following]
        runs_on = np.append(np.int64(0), act.compute[:, 1])[following] > end
        starts = np.sort(times(mine, "start_ns"))
        next_call = np.append(starts, beyond)[np.searchsorted(starts, end, side="left")]
        parts.append(mine.with_columns(resumes=pl.Series(~runs_on & (begins < next_call))))
    return pl.concat(parts)


def exposed_waiting_ms(table: pl.DataFrame, windows: StepWindows, acts: Mapping[int, RankActivity]) -> pl.DataFrame:
    """rank, step, wait_ms: time in which a rank did nothing but wait for a late one; overlapping calls count once."""
    waits = dict(by_rank(table.filter(pl.col("wait_ms") > 0).select("rank", "start_ns", "wait_ms")))
    rows = []
    for rank, steps in by_rank(windows.table.filter("steady")):
        mine = waits.get(rank, table.select("rank", "start_ns", "wait_ms").clear())
        start = times(mine, "start_ns")
        waited = np.column_stack((start, start + (mine["wait_ms"].to_numpy() * 1e6).round().astype(np.int64)))
        act = acts.get(rank)
        alone = subtract(merge(waited), act.compute) if act is not None else merge(waited)
        spent = covered(alone, times(steps, "start_ns"), times(steps, "end_ns"))
        rows.append(steps.select("rank", "step").with_columns(wait_ms=pl.Series(spent / 1e6)))
    return pl.concat(rows) if rows else pl.DataFrame(schema={"rank": pl.Int32, "step": pl.Int64, "wait_ms": pl.Float64})
