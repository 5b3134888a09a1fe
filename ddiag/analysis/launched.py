"""From host spans to the device work launched in them."""

from __future__ import annotations

import numpy as np
import polars as pl

from ddiag.analysis.intervals import Intervals
from ddiag.analysis.names import of_kind, times
from ddiag.model.run import Run


def device_passes(run: Run, rank: int, passes: Intervals) -> Intervals:
    """For each host span from when to when the compute kernels launched in it ran; the span itself if none were.

    *passes*: disjoint spans in order. Spans of kernels launched in different spans may touch but not cross: a stream
    runs in order.
    """
    mine = pl.col("rank") == rank
    launches = (
        run.table("launches")
        .filter(mine & (pl.col("correlation") >= 0))
        .select("correlation", launched_ns="start_ns")
        .unique("correlation", keep="last")
    )
    kernels = of_kind(run.table("kernels").filter(mine), "compute").join(launches, on="correlation")
    at = times(kernels, "launched_ns")
    row = np.searchsorted(passes[:, 0], at, side="right") - 1
    inside = (row >= 0) & (at <= passes[np.maximum(row, 0), 1])
    found = passes.copy()
    begin = np.full(len(passes), np.iinfo(np.int64).max)
    end = np.full(len(passes), np.iinfo(np.int64).min)
    np.minimum.at(begin, row[inside], times(kernels, "start_ns")[inside])
    np.maximum.at(end, row[inside], times(kernels, "end_ns")[inside])
    ran = end > begin
    found[ran] = np.column_stack((begin[ran], end[ran]))
    return np.asarray(found, dtype=np.int64)
