"""What DDP's search for unused parameters found over the run."""

from __future__ import annotations

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals_recorded import UnusedSearch


def unused_search(run: Run) -> UnusedSearch | None:
    """None where no module searches, or none was looked at."""
    told = run.table("ddp_unused")
    if told.is_empty():
        return None
    looks = told.group_by("rank", "module").agg(pl.col("looks").max())["looks"].to_list()
    return UnusedSearch(
        looks=min(looks),
        ever_unused=bool((told["unused_bytes"] > 0).any()),
        modules=tuple(sorted(told["module"].unique().to_list())),
        ranks=tuple(sorted(told["rank"].unique().to_list())),
    )
