"""Everything that ran on a device, each piece beside the host call that launched it."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.memo import once_per_run
from ddiag.model.run import Run

_COLUMNS = ["rank", "device", "stream", "kind", "name", "start_ns", "end_ns", "correlation", "external_id"]
_SKEW_NS = 1_000_000
"""Device clocks are fitted to the host's: a kernel may seem to start this much before its launch."""


@once_per_run
def device_work(run: Run) -> pl.DataFrame:
    """Kernels and copies in time order per rank, with the launch that caused each.

    Columns: rank, device, stream, kind (compute, communication or copy), name (of a copy: its direction), start_ns,
    end_ns, correlation, external_id, launch_start_ns, launch_end_ns, launch_tid, launch_kind (null where no launch was
    recorded). One graph launch may own many kernels.
    """
    return _with_launches(_all_work(run), run.table("launches"))


def _all_work(run: Run) -> pl.DataFrame:
    kernels = run.table("kernels").select(_COLUMNS)
    copies = run.table("copies").with_columns(pl.lit("copy").cast(pl.Categorical).alias("kind"), name="direction")
    return pl.concat([kernels, copies.select(_COLUMNS)]).sort(["rank", "start_ns", "end_ns"])


def _with_launches(work: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    calls = launches.filter(pl.col("correlation") >= 0).select(
        "rank",
        "correlation",
        pl.col("start_ns").alias("launch_start_ns"),
        pl.col("end_ns").alias("launch_end_ns"),
        pl.col("tid").alias("launch_tid"),
        pl.col("kind").alias("launch_kind"),
    )
    if calls.select("rank", "correlation").is_duplicated().any():
        return _join_latest(work, calls)
    return work.join(calls, on=["rank", "correlation"], how="left", maintain_order="left")


def _join_latest(work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Ids repeat (several captures, or a process that started again): take the latest call before the work."""
    keyed = work.with_columns((pl.col("start_ns") + _SKEW_NS).alias("_by"))
    joined = keyed.sort("_by").join_asof(
        calls.sort("launch_start_ns"),
        left_on="_by",
        right_on="launch_start_ns",
        by=["rank", "correlation"],
        strategy="backward",
        coalesce=False,
        check_sortedness=False,
    )
    return joined.drop("_by").sort(["rank", "start_ns", "end_ns"])
