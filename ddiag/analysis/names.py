"""Choosing rows by name: predicates run once per unique name, never per row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.analysis.intervals import Intervals, union


def where_name(frame: pl.DataFrame, wanted: Callable[[str], bool], column: str = "name") -> pl.DataFrame:
    """Rows of *frame* whose *column* satisfies *wanted*; rows without a name never do."""
    chosen = [name for name in frame[column].unique().drop_nulls().to_list() if wanted(name)]
    if not chosen:
        return frame.clear()
    return frame.filter(pl.col(column).cast(pl.Categorical).is_in(chosen))


def of_kind(frame: pl.DataFrame, *kinds: str) -> pl.DataFrame:
    """Rows whose ``kind`` is one of *kinds*."""
    return frame.filter(pl.col("kind").is_in(list(kinds)))


def times(frame: pl.DataFrame, column: str) -> npt.NDArray[np.int64]:
    """A time column as an int64 array."""
    return frame[column].to_numpy().astype(np.int64, copy=False)


def spans_union(frame: pl.DataFrame) -> Intervals:
    """Union of the spans of *frame*, whichever streams or threads they are on."""
    if frame.is_empty():
        return union(np.empty(0, np.int64), np.empty(0, np.int64))
    return union(times(frame, "start_ns"), times(frame, "end_ns"))


def outermost(frame: pl.DataFrame) -> pl.DataFrame:
    """Spans of one thread that do not lie inside another span of *frame* on that thread (nested ones count once)."""
    if frame.height < 2:
        return frame
    ordered = frame.sort(["rank", "tid", "start_ns", "end_ns"], descending=[False, False, False, True])
    reach = pl.col("end_ns").cum_max().shift(1).over(["rank", "tid"])
    return ordered.filter(reach.is_null() | (pl.col("end_ns") > reach))


def innermost(frame: pl.DataFrame) -> pl.DataFrame:
    """Spans of one thread that contain no other span of *frame* on that thread: the leaves."""
    if frame.height < 2:
        return frame
    ordered = frame.sort(["rank", "tid", "start_ns", "end_ns"], descending=[False, False, False, True])
    following = pl.col("start_ns").shift(-1).over(["rank", "tid"])
    return ordered.filter(following.is_null() | (following >= pl.col("end_ns")))
