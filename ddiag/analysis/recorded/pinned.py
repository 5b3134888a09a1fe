"""Page-locked host memory over the run."""

from __future__ import annotations

import numpy as np
import polars as pl

from ddiag.analysis.memory import theil_sen
from ddiag.model.run import Run
from ddiag.model.signals_recorded import PinnedMemory

_WARM_UP = 0.2
"""First part of the looks, in which pools fill up."""
_LOOKS = 5
"""Fewer tell no trend."""
_POINTS = 200
_SCHEMA = {
    "rank": pl.Int32, "last_bytes": pl.Int64, "growth_bytes_per_step": pl.Float64, "rising": pl.Float64,
    "looks": pl.Int64, "steps": pl.Int64,
}  # fmt: skip


def pinned_memory(run: Run) -> PinnedMemory | None:
    """None where no rank was looked at often enough."""
    told = run.table("pinned_memory").drop_nulls(["step", "pinned_bytes"]).sort("rank", "ts_ns")
    rows = [row for (rank,), mine in told.group_by("rank", maintain_order=True) if (row := _of_rank(rank, mine))]
    if not rows:
        return None
    return PinnedMemory(pl.DataFrame(rows, schema=_SCHEMA, orient="row"), _free(run))


def _of_rank(rank: object, mine: pl.DataFrame) -> tuple[object, ...] | None:
    later = mine.slice(int(_WARM_UP * mine.height))
    if later.height < _LOOKS:
        return None
    at = np.unique(np.linspace(0, later.height - 1, min(_POINTS, later.height)).round().astype(int))
    steps = later["step"].to_numpy().astype(np.float64)[at]
    held = later["pinned_bytes"].to_numpy().astype(np.float64)[at]
    if steps[-1] <= steps[0]:
        return None
    rising = float((np.diff(held) > 0).mean())
    return rank, int(held[-1]), theil_sen(steps, held), rising, later.height, int(steps[-1] - steps[0])


def _free(run: Run) -> float | None:
    free = run.table("counters").filter(pl.col("name").cast(pl.String).str.ends_with("memory.available_bytes"))
    if free.is_empty() or free["name"].n_unique() != 1:
        return None
    return float(free.sort("ts_ns")["value"][-1])
