"""The rows of one rank without searching all ranks' rows each time: with hundreds of ranks that would be quadratic."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import polars as pl

from ddiag.analysis.device_work import device_work
from ddiag.model.run import Run

_Slices = tuple[pl.DataFrame, dict[int, tuple[int, int]]]
_REMEMBERED: dict[int, dict[str, _Slices]] = {}
"""By the id of a run, while that run lives: each table sorted by rank, and where each rank's rows lie."""
DEVICE_WORK = "device_work"
"""Beside the run's own tables: what :func:`~ddiag.analysis.device_work.device_work` gives."""


def rows_of(run: Run, table: str, rank: int) -> pl.DataFrame:
    """The rows of *rank* in a table of *run* (or in its device work), in their order there."""
    if id(run) not in _REMEMBERED:
        _REMEMBERED[id(run)] = {}
        weakref.finalize(run, _REMEMBERED.pop, id(run), None)
    known = _REMEMBERED[id(run)]
    if table not in known:
        known[table] = _sliced(device_work(run) if table == DEVICE_WORK else run.table(table))
    frame, slices = known[table]
    start, length = slices.get(rank, (0, 0))
    return frame.slice(start, length)


def by_rank(frame: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """(rank, its rows in their order) in ascending order of rank, without copying them once per rank."""
    ordered, slices = _sliced(frame)
    for rank, (start, length) in slices.items():
        yield rank, ordered.slice(start, length)


def _sliced(frame: pl.DataFrame) -> _Slices:
    """*frame* in rank order (itself when it is already), with offset and length of each rank."""
    ranks = frame["rank"].to_numpy()
    if not (ranks[1:] >= ranks[:-1]).all():
        frame = frame.sort("rank", maintain_order=True)
        ranks = frame["rank"].to_numpy()
    found, start, length = np.unique(ranks, return_index=True, return_counts=True)
    return frame, {int(r): (int(s), int(n)) for r, s, n in zip(found, start, length, strict=True)}
