"""What the recorder itself took of a recorded job."""

from __future__ import annotations

import polars as pl

from ddiag.model.run import RecordingCost

_SETTLED = 8
"""First steps, which are slow and looked at closely."""
_ENOUGH_STEPS = 8


def recording_cost(summaries: pl.DataFrame) -> RecordingCost | None:
    """What it took of the rank it cost most; None when too few steps were recorded to tell.

    The recorder times itself inside the training process, where caches are cold; a share of all steps together, since a
    tier that samples makes few steps dear. *summaries* is the table ``step_summaries``.
    """
    if summaries.is_empty():
        return None
    took = pl.col("end_ns") - pl.col("start_ns")
    settled = summaries.filter((pl.col("step") >= _SETTLED) & (took > 0))
    ranks = (
        settled.group_by("rank")
        .agg(
            (pl.col("overhead_ns").sum() / took.sum()).alias("share"),
            (took.mean() / 1e6).alias("step_ms"),
            pl.len().alias("steps"),
        )
        .filter((pl.col("steps") >= _ENOUGH_STEPS) & (pl.col("share") > 0))
        .sort("share", "rank", descending=[True, False])
    )
    if ranks.is_empty():
        return None
    rank, share, step_ms, _ = ranks.row(0)
    return RecordingCost(rank=rank, share=share, ms_per_step=share * step_ms, step_ms=step_ms)
