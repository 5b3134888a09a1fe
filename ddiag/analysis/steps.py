"""Training steps of every rank: which there are, when the device worked on each, and which are steady.

The host runs ahead of the device, so a step has two windows. On the host it lasts from its mark to the next one. On the
device it begins when the host has reached the step *and* the device has finished all work launched before it, so a step
owns the work it launched however far the device lags (37 ms, two whole steps, in one MI300X trace) and the windows
of consecutive steps touch. The last step ends with the last work it launched. Without a device both windows are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ddiag.analysis.intervals import Times
from ddiag.analysis.names import times
from ddiag.analysis.rank_rows import DEVICE_WORK, rows_of
from ddiag.analysis.rank_walk import by_rank
from ddiag.analysis.steady import judge
from ddiag.analysis.step_marks import find_marks
from ddiag.model.run import Run

_ENDLESS = np.iinfo(np.int64).max


@dataclass(frozen=True)
class StepWindows:
    """Step windows of every rank."""

    table: pl.DataFrame
    """rank, step, start_ns, end_ns (device-aware window, contiguous: for budgets and device work), steady (bool),
    host_start_ns, host_end_ns (from the step's mark to the next: for host spans and launches)."""
    source: str
    """annotation, inferred or window."""
    note: str
    """How steps were found and which were left out, in one or a few sentences."""
    excluded: tuple[int, ...]
    """Steps left out on all ranks, as warm-up or cut off."""
    warm_up: tuple[int, ...] = ()
    """Those of them that are warm-up."""

    @cached_property
    def steady(self) -> pl.DataFrame:
        """The steps that stand for the run."""
        return self.table.filter("steady")

    @cached_property
    def steady_of(self) -> dict[int, pl.DataFrame]:
        """The same by rank; a rank without any is not there."""
        return dict(by_rank(self.steady))


def find_steps(run: Run) -> StepWindows:
    """Find the steps of *run*, the same numbers meaning the same iteration on all ranks where that can be told."""
    marks = find_marks(run)
    notes = [marks.note] if marks.note else []
    host, note = _aligned(marks.table)
    notes += [note] if note else []
    table = _with_device_windows(run, host)
    judged = judge(run, table)
    return StepWindows(judged.table, marks.source, "; ".join([*notes, *judged.notes]), judged.excluded, judged.warm_up)


def _aligned(steps: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Give steps comparable numbers: as recorded when most ranks share some, else by their order."""
    ranks = steps["rank"].n_unique()
    shared = steps.group_by("step").agg(pl.col("rank").n_unique().alias("n")).filter(pl.col("n") > ranks / 2)
    if ranks < 2 or not shared.is_empty():
        return steps, ""
    by_order = steps.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).over("rank").alias("step"))
    return by_order, "ranks number their steps differently: compared in order of time"


def _with_device_windows(run: Run, host: pl.DataFrame) -> pl.DataFrame:
    """Add start_ns and end_ns to the host windows."""
    captures = run.table("captures")
    parts = []
    for rank in host["rank"].unique(maintain_order=True).to_list():
        steps = host.filter(pl.col("rank") == rank)
        mine = rows_of(run, DEVICE_WORK, rank)
        begin, end = times(steps, "host_start_ns"), times(steps, "host_end_ns")
        issued, finished = _completion(mine, np.sort(times(captures.filter(pl.col("rank") == rank), "start_ns")))
        start_ns, end_ns = (np.maximum(at, _finished_by(at, issued, finished)) for at in (begin, end))
        if (end_ns <= start_ns).mean() > 0.5:  # one piece of work spans all steps: it says nothing about them
            start_ns, end_ns = begin, end
        parts.append(steps.with_columns(pl.Series("start_ns", start_ns), pl.Series("end_ns", end_ns)))
    table = pl.concat(parts) if parts else host.with_columns(start_ns="host_start_ns", end_ns="host_end_ns")
    return table.filter(pl.col("end_ns") > pl.col("start_ns"))


def _completion(work: pl.DataFrame, captures: Times) -> tuple[Times, Times]:
    """When each piece of device work was issued (sorted), and when all issued so far had ended.

    Work without a launch that precedes all launched work of its capture was issued before recording began.
    """
    if work.is_empty():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    start = times(work, "start_ns")
    launched = work["launch_start_ns"].is_not_null().to_numpy()
    issued = np.where(launched, work["launch_start_ns"].fill_null(0).to_numpy(), start)
    capture = np.maximum(np.searchsorted(captures, start, side="right") - 1, 0)
    first_launched = np.full(max(captures.size, 1), _ENDLESS)
    np.minimum.at(first_launched, capture[launched], start[launched])
    inherited = ~launched & (start < first_launched[capture]) & (first_launched[capture] < _ENDLESS)
    if captures.size:
        issued = np.where(inherited, captures[capture] - 1, issued)
    order = np.argsort(issued, kind="stable")
    return issued[order], np.maximum.accumulate(times(work, "end_ns")[order])


def _finished_by(at: Times, issued: Times, finished: Times) -> Times:
    """When all work issued before each time in *at* had ended; *at* itself when there was none."""
    count = np.searchsorted(issued, at, side="left")
    if not issued.size:
        return at
    return np.where(count > 0, finished[np.maximum(count - 1, 0)], at)
