"""One rank's rows of a run's tables, looked up once: with hundreds of ranks filtering each time would be quadratic."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.device_work import device_work
from ddiag.analysis.memo import once_per_run
from ddiag.analysis.rank_walk import Slices, rank_slices
from ddiag.model.run import Run

DEVICE_WORK = "device_work"
"""Beside the run's own tables: what :func:`~ddiag.analysis.device_work.device_work` gives."""


def rows_of(run: Run, table: str, rank: int) -> pl.DataFrame:
    """The rows of *rank* in a table of *run* (or in its device work), in their order there."""
    frame, slices = _slices(run, table)
    start, length = slices.get(rank, (0, 0))
    return frame.slice(start, length)


@once_per_run
def _slices(run: Run, table: str) -> Slices:
    return rank_slices(device_work(run) if table == DEVICE_WORK else run.table(table))
