"""Amounts per steady step and rank: how much of some spans lies inside the steps."""

from __future__ import annotations

import numpy as np
import polars as pl

from ddiag.analysis.intervals import Intervals, Times, covered
from ddiag.analysis.names import times
from ddiag.analysis.steps import StepWindows

NS_PER_MS = 1e6


def ranks_with_steps(windows: StepWindows) -> list[int]:
    """Ranks that have at least one steady step."""
    return sorted(windows.steady_of)


def device_windows(windows: StepWindows, rank: int) -> tuple[Times, Times]:
    """Starts and ends of the steady steps of *rank* as its device lived them."""
    mine = windows.steady_of[rank]
    return times(mine, "start_ns"), times(mine, "end_ns")


def host_windows(windows: StepWindows, rank: int) -> tuple[Times, Times]:
    """Starts and ends of the steady steps of *rank* as its host lived them."""
    mine = windows.steady_of[rank]
    return times(mine, "host_start_ns"), times(mine, "host_end_ns")


def ms_per_step(spans: Intervals, steps: tuple[Times, Times]) -> float:
    """Mean over *steps* of the part of *spans* inside, in ms."""
    return float(covered(spans, *steps).mean()) / NS_PER_MS if steps[0].size else 0.0


def step_of(steps: pl.DataFrame, at: Times) -> pl.Series:
    """Number of the step of one rank whose host window contains each time; null outside all steps."""
    ordered = steps.sort("host_start_ns")
    begin, end = times(ordered, "host_start_ns"), times(ordered, "host_end_ns")
    index = np.searchsorted(begin, at, side="right") - 1
    inside = (index >= 0) & (at < end[np.maximum(index, 0)]) if begin.size else np.zeros(at.size, dtype=bool)
    found = ordered["step"].gather(np.maximum(index, 0)) if begin.size else pl.Series([None] * at.size, dtype=pl.Int64)
    return pl.select(pl.when(pl.Series(inside)).then(found)).to_series().alias("step")


def mean_step_ms(windows: StepWindows, rank: int) -> float:
    """Mean steady step of *rank* in ms."""
    start, end = device_windows(windows, rank)
    return float((end - start).mean()) / NS_PER_MS if start.size else 0.0
