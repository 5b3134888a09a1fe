"""When a call was served, rather than issued.

DDP issues its reductions while earlier ones are still under way; a host backend (gloo) takes them from a queue per
group, and so does a device (NCCL: from a stream per group). From issue to end, calls overlap and the last ones seem to
take as long as all together. What a call costs is the time from when the one before it was over (or from its own issue,
when nothing was queued) to its own end: these spans do
not overlap, and together they are the time in which the group was busy.
"""

from __future__ import annotations

import polars as pl

from ddiag.model.run import Run

_DIRECT = ("send", "recv")
"""Do not pass the queue."""


def served(run: Run) -> pl.DataFrame:
    """``collectives`` of *run* in which each queued call begins when it was its turn; ``issued_ns`` keeps its issue."""
    calls = run.table("collectives").with_columns(issued_ns="start_ns")
    queued = pl.col("end_ns").is_not_null() & ~pl.col("op").is_in(_DIRECT)
    mine = calls.filter(queued).sort("rank", "source", "group", "end_ns", maintain_order=True)
    before = pl.col("end_ns").shift(1).over("rank", "source", "group")
    mine = mine.with_columns(start_ns=pl.max_horizontal("start_ns", before))
    rest = calls.filter(~queued.fill_null(value=False))
    return pl.concat([mine, rest]).sort("rank", "enqueue_ns", maintain_order=True)
