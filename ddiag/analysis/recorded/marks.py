"""What the training thread of each rank did, as the recorder marked it."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.intervals import EMPTY, Intervals
from ddiag.analysis.memo import once_per_run
from ddiag.analysis.names import spans_union
from ddiag.analysis.rank_rows import rows_of
from ddiag.model.run import Run


@once_per_run
def marks(run: Run, rank: int) -> pl.DataFrame:
    """Rows of ``phases`` of the rank's training thread; what had not ended lasts until the recording does."""
    mine = rows_of(run, "phases", rank)
    captures = run.table("captures").filter(pl.col("rank") == rank)
    thread = run.table("ranks").filter(pl.col("rank") == rank)["main_tid"].drop_nulls()
    if len(thread):
        mine = mine.filter(pl.col("tid") == int(thread[0]))
    last = captures["end_ns"].max()
    ended = pl.coalesce("end_ns", pl.lit(last, dtype=pl.Int64))
    return mine.with_columns(pl.max_horizontal("start_ns", ended).alias("end_ns"))


def of_phase(run: Run, rank: int, *phases: str) -> pl.DataFrame:
    return marks(run, rank).filter(pl.col("phase").is_in(list(phases)))


@once_per_run
def in_phase(run: Run, rank: int, *phases: str) -> Intervals:
    """When the training thread was in one of *phases*, at whatever depth."""
    found = of_phase(run, rank, *phases)
    return spans_union(found) if found.height else EMPTY
