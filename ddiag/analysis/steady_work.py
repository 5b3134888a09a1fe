"""Device work and host spans of steady steps, and which work a host span launched: shared by the compute families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from ddiag.analysis.intervals import Intervals, total, union
from ddiag.analysis.names import outermost, times
from ddiag.analysis.steps import StepWindows

NS_PER_MS = 1e6


def in_steady(frame: pl.DataFrame, windows: StepWindows, *, at: str = "start_ns", host: bool = False) -> pl.DataFrame:
    """Rows of *frame* whose time *at* lies in a steady step of their rank, with that ``step``.

    *host*: use the window of the host (operators, runtime calls) instead of the device's (kernels, copies).
    """
    begin, end = ("host_start_ns", "host_end_ns") if host else ("start_ns", "end_ns")
    steps = windows.steady.select("rank", "step", pl.col(begin).alias("_begin"), pl.col(end).alias("_end"))
    found = _last_started(frame, steps, at, "_begin", ["rank"])
    return found.filter(pl.col(at) < pl.col("_end")).drop("_begin", "_end")


def step_count(windows: StepWindows) -> int:
    """Steady steps summed over ranks: what totals are divided by to get a mean per rank and step."""
    return windows.steady.height


def mean_step_ms(windows: StepWindows) -> float:
    """Mean length of a steady step in ms; 0.0 without one."""
    steady = windows.steady
    if steady.is_empty():
        return 0.0
    return float((times(steady, "end_ns") - times(steady, "start_ns")).mean()) / NS_PER_MS


def launched_in(work: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Rows of *work* (:func:`~ddiag.analysis.device_work.device_work`) launched inside a span, on the span's thread."""
    if work.is_empty() or spans.is_empty():
        return work.clear()
    outer = outermost(spans.select("rank", "tid", "start_ns", "end_ns"))
    keys = outer.select("rank", pl.col("tid").alias("launch_tid"), pl.col("start_ns").alias("_begin"), _end="end_ns")
    launched = work.filter(pl.col("launch_start_ns").is_not_null())
    found = _last_started(launched, keys, "launch_start_ns", "_begin", ["rank", "launch_tid"])
    return found.filter(pl.col("launch_start_ns") < pl.col("_end")).drop("_begin", "_end")


def inside(frame: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Host rows of *frame* that lie inside a span of *spans* on the same thread (a span lies inside itself)."""
    if frame.is_empty() or spans.is_empty():
        return frame.clear()
    outer = outermost(spans.select("rank", "tid", "start_ns", "end_ns"))
    keys = outer.select("rank", "tid", pl.col("start_ns").alias("_begin"), pl.col("end_ns").alias("_end"))
    found = _last_started(frame, keys, "start_ns", "_begin", ["rank", "tid"])
    return found.filter(pl.col("end_ns") <= pl.col("_end")).drop("_begin", "_end")


def _last_started(frame: pl.DataFrame, spans: pl.DataFrame, at: str, begin: str, by: Sequence[str]) -> pl.DataFrame:
    """Each row with the last span of its group that began at or before *at*; rows without one are dropped."""
    found = frame.sort(at).join_asof(
        spans.sort(begin),
        left_on=at,
        right_on=begin,
        by=list(by),
        strategy="backward",
        check_sortedness=False,
        coalesce=False,
    )
    return found.filter(pl.col(begin).is_not_null())


def labelled(frame: pl.DataFrame, label: Callable[[str], str | None], alias: str, column: str = "name") -> pl.DataFrame:
    """*frame* with the text *label* gives for *column*; *label* runs once per unique name."""
    unique = frame[column].unique().drop_nulls()
    mapping = pl.DataFrame(
        {column: unique, alias: pl.Series([label(name) for name in unique.to_list()], dtype=pl.String)}
    )
    return frame.join(mapping, on=column, how="left", maintain_order="left")


def busy_ns(frame: pl.DataFrame) -> int:
    """Ns during which anything of *frame* ran, counted per rank: overlapping rows of one rank count once."""
    return sum(total(rank_union(group)) for _, group in frame.group_by("rank"))


def rank_union(frame: pl.DataFrame) -> Intervals:
    """Union of the rows of one rank."""
    return union(times(frame, "start_ns"), times(frame, "end_ns"))


def summed_ns(frame: pl.DataFrame) -> int:
    """Summed duration in ns."""
    return int((times(frame, "end_ns") - times(frame, "start_ns")).sum()) if frame.height else 0
