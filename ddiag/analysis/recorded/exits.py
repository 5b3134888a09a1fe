"""How the job and its ranks ended."""

from __future__ import annotations

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals_recorded import Exits

_KILLS = ("memory.oom_kills", "cgroup.oom_kills")
"""Counters of the kernel's and of the control group's kills; a kill may show in both."""


def exits(run: Run) -> Exits | None:
    """None when nothing was recorded of ends."""
    table = run.table("exits")
    if table.is_empty():
        return None
    told = dict(
        run.table("config")
        .filter(pl.col("key").is_in(["job.exit_code", "job.asked_to_end"]))["key", "value"]
        .iter_rows()
    )
    code = told.get("job.exit_code")
    return Exits(
        table=table.join(_kills(run), on="host", how="left", nulls_equal=True),
        exit_code=int(code) if code is not None else None,
        asked_to_end=told.get("job.asked_to_end") or "",
        started_again="job.started_again" in told,
        missing=run.coverage.ranks_missing,
    )


def _kills(run: Run) -> pl.DataFrame:
    """host, out_of_memory_kills."""
    counters = run.table("counters").with_columns(pl.col("name").cast(pl.String))
    hosts = run.table("exits")["host"].unique().to_list()
    return pl.DataFrame(
        {"host": hosts, "out_of_memory_kills": [_rise(counters, host) for host in hosts]},
        schema={"host": pl.String, "out_of_memory_kills": pl.Int64},
    )


def _rise(counters: pl.DataFrame, host: str | None) -> int | None:
    """Names bear the host's only when there are several."""
    names = [f"{prefix}{name}" for name in _KILLS for prefix in ("", f"{host}:")]
    rises = [
        int(mine["value"].to_numpy().max() - mine["value"].to_numpy().min())
        for _, mine in counters.filter(pl.col("name").is_in(names)).group_by("name")
    ]
    return max(rises, default=None)
