"""Interval arithmetic on sorted disjoint int64 arrays: the base of every time budget.

An ``Intervals`` is an (n, 2) int64 array of [start, end) in ns, sorted and disjoint, so nothing is counted twice
however many streams or nested operators overlap. Everything is vectorised: a trace has 10^5..10^7 of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def union(starts: Times, ends: Times) -> Intervals:
    """Merge spans (any order, overlapping, touching) into disjoint intervals; empty spans vanish."""
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if starts.size == 0:
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.empty(starts.size, dtype=bool)
    first[0] = True
    np.greater(starts[1:], ends[:-1], out=first[1:])
    last = np.append(first[1:], True)
    return np.column_stack((starts[first], ends[last]))


def merge(*parts: Intervals) -> Intervals:
    """Union of several interval sets."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return EMPTY
    both = np.concatenate(filled)
    return union(both[:, 0], both[:, 1])


def total(spans: Intervals) -> int:
    """Summed length in ns."""
    return int((spans[:, 1] - spans[:, 0]).sum()) if len(spans) else 0


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Time that is in both."""
    return subtract(a, subtract(a, b))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Time in *a* that is not in *b*."""
    if not len(a) or not len(b):
        return a
    edges = np.concatenate((a[:, 0], a[:, 1], b[:, 0], b[:, 1]))
    in_a = np.repeat(np.array([1, -1, 0, 0], dtype=np.int8), (len(a), len(a), len(b), len(b)))
    in_b = np.repeat(np.array([0, 0, 1, -1], dtype=np.int8), (len(a), len(a), len(b), len(b)))
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    inside = (np.cumsum(in_a[order]) > 0) & (np.cumsum(in_b[order]) == 0)
    keep = inside[:-1] & (edges[1:] > edges[:-1])
    return union(edges[:-1][keep], edges[1:][keep])


def clip(spans: Intervals, start: int, end: int) -> Intervals:
    """The part inside [start, end)."""
    if not len(spans):
        return spans
    clipped = np.clip(spans, start, end)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def covered(spans: Intervals, starts: Times, ends: Times) -> Times:
    """For each window [start, end): the ns of *spans* inside it. Windows may overlap each other."""
    if not len(spans):
        return np.zeros(len(starts), dtype=np.int64)
    return _cumulative(spans, ends) - _cumulative(spans, starts)


def _cumulative(spans: Intervals, at: Times) -> Times:
    """Ns of *spans* before each time in *at*."""
    lengths = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0])))
    index = np.searchsorted(spans[:, 0], at, side="right")
    before = lengths[np.maximum(index - 1, 0)]
    inside = np.minimum(at, spans[np.maximum(index - 1, 0), 1]) - spans[np.maximum(index - 1, 0), 0]
    return np.where(index > 0, before + np.maximum(inside, 0), 0)
