"""Samples of hosts and devices: those of a time, and how cumulative values rise."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run


def judged_time(windows: StepWindows) -> tuple[int, int]:
    """Unix ns of begin and end of the judged steps; (0, 0) without any."""
    if windows.table.is_empty():
        return 0, 0
    return int(windows.table["start_ns"].to_numpy().min()), int(windows.table["end_ns"].to_numpy().max())


def samples(run: Run, begin: int | None = None, end: int | None = None) -> pl.DataFrame:
    """``counters`` from *begin* to *end*, in the order of time, names as text."""
    found = run.table("counters").with_columns(pl.col("name").cast(pl.String))
    if begin is not None and end is not None:
        found = found.filter(pl.col("ts_ns").is_between(begin, end))
    return found.sort("ts_ns")


def prefix_of(run: Run, host: object) -> str:
    """Names of a host's own values begin with it where several were sampled."""
    several = run.table("counters")["name"].cast(pl.String).str.ends_with(":cpu.count").any()
    return f"{host}:" if several else ""


def series(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """ts_ns and value of one name."""
    return rows.filter(pl.col("name") == name).select("ts_ns", "value")


def rise(rows: pl.DataFrame) -> float | None:
    """By how much a cumulative value rose, also over a counter that began anew; None with fewer than two samples."""
    if rows.height < 2:
        return None
    return float(rows.select(pl.col("value").diff().clip(lower_bound=0).sum()).item())


def seconds(rows: pl.DataFrame) -> float:
    return (int(rows["ts_ns"][-1]) - int(rows["ts_ns"][0])) / 1e9 if rows.height > 1 else 0.0


def rate(rows: pl.DataFrame) -> float | None:
    """Rise per second."""
    risen, length = rise(rows), seconds(rows)
    return None if risen is None or length <= 0 else risen / length
