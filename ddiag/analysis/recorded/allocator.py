"""How often the caching allocator of a device ran out, gave its cache back and asked again, over the run."""

from __future__ import annotations

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals_sampled import AllocatorRetries

_WARM_UP = 0.2
"""First part of the run, in which the cache fills up …"""
_MIN_WARM_UP = 5
"""… at least this many steps of it."""
_ENOUGH_STEPS = 8
_COMPARED = 3
"""Steps with and without retries that a difference in time needs."""
_SCHEMA = {
    "rank": pl.Int32, "steps": pl.Int64, "steps_with_retries": pl.Int64, "retries": pl.Int64, "extra_ms": pl.Float64,
    "inactive_split_share": pl.Float64, "ooms": pl.Int64,
}  # fmt: skip


def allocator_retries(run: Run) -> AllocatorRetries | None:
    """None where no rank trained on a device for long enough."""
    known = run.table("step_summaries").filter(pl.col("alloc_retries").is_not_null()).sort("rank", "step")
    rows = []
    for (rank,), mine in known.group_by("rank", maintain_order=True):
        later = mine.slice(max(_MIN_WARM_UP, int(_WARM_UP * mine.height)))
        if later.height >= _ENOUGH_STEPS:
            rows.append((rank, *_retries(later), *_looks(run, rank)))
    return AllocatorRetries(pl.DataFrame(rows, schema=_SCHEMA, orient="row")) if rows else None


def _retries(steps: pl.DataFrame) -> tuple[int, int, int, float | None]:
    """(steps, those with retries, retries, by how much longer such a step takes).

    Counters are read in as many steps as the recorder can afford: one reading stands for all steps since the last, of
    which at least one retried.
    """
    length = (pl.col("end_ns") - pl.col("start_ns")) / 1e6
    steps = steps.with_columns(covered=pl.col("step").diff().fill_null(1))
    tried = steps.filter(pl.col("alloc_retries") > 0).height
    alone = steps.filter(pl.col("covered") == 1)
    slow, smooth = (
        alone.filter(pl.col("alloc_retries") > 0 if retried else pl.col("alloc_retries") == 0).select(length)
        for retried in (True, False)
    )
    extra = None
    if min(slow.height, smooth.height) >= _COMPARED:
        extra = max(float(slow.median().item() - smooth.median().item()), 0.0)
    return int(steps["covered"].sum()), tried, int(steps["alloc_retries"].sum()), extra


def _looks(run: Run, rank: object) -> tuple[float | None, int | None]:
    """(free parts of split blocks / reserved, failed requests), of the looks that were taken beside the steps."""
    looks = run.table("pinned_memory").filter((pl.col("rank") == rank) & (pl.col("reserved_bytes") > 0))
    if looks.is_empty():
        return None, None
    return looks.select((pl.col("inactive_split_bytes") / pl.col("reserved_bytes")).median(), pl.col("ooms").max()).row(
        0
    )
