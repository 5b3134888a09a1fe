"""The call tree of host spans, without walking it: who encloses whom on each thread, and each span's own time."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.analysis.intervals import Times
from ddiag.analysis.names import times

Index = npt.NDArray[np.int64]


def call_tree(spans: pl.DataFrame) -> pl.DataFrame:
    """*spans* by rank, thread and time, with ``row``, ``depth`` (0 outermost) and ``parent`` (a row, -1 if none)."""
    ordered = spans.sort(["rank", "tid", "start_ns", "end_ns"], descending=[False, False, False, True])
    depth, parent = np.zeros(ordered.height, np.int64), np.full(ordered.height, -1, np.int64)
    start, end = times(ordered, "start_ns"), times(ordered, "end_ns")
    threads = ordered.select(pl.struct("rank", "tid").rle_id()).to_series().to_numpy()
    edges = np.concatenate(([0], np.flatnonzero(np.diff(threads)) + 1, [ordered.height])) if ordered.height else [0]
    for low, high in itertools.pairwise(edges):
        depth[low:high] = _depth(start[low:high], end[low:high])
        found = _parent(depth[low:high])
        parent[low:high] = np.where(found >= 0, found + low, -1)
    return ordered.with_columns(
        pl.Series("row", np.arange(ordered.height)), pl.Series("depth", depth), pl.Series("parent", parent)
    )


def _depth(start: Times, end: Times) -> Index:
    """Open spans at each start: all that began before, less all that have ended."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    depth: Index = np.maximum(np.arange(start.size) - ended, 0)
    return depth


def _parent(depth: Index) -> Index:
    """The last earlier span that is one level up."""
    parent = np.full(depth.size, -1, np.int64)
    rows = np.arange(depth.size)
    for level in range(1, int(depth.max(initial=0)) + 1):
        above = np.maximum.accumulate(np.where(depth == level - 1, rows, -1))
        here = depth == level
        parent[here] = above[here]
    return parent


def self_ns(tree: pl.DataFrame) -> Times:
    """Ns each span of :func:`call_tree` spent outside its children, in the tree's order."""
    length = times(tree, "end_ns") - times(tree, "start_ns")
    parent = tree["parent"].to_numpy()
    nested = parent >= 0
    children = np.zeros(tree.height, np.int64)
    np.add.at(children, parent[nested], length[nested])
    own: Times = np.maximum(length - children, 0)
    return own
