"""Put the clocks of all ranks on one axis by the ends of synchronising collectives.

All members leave such a collective nearly together, whoever came late, so the median difference of ends between two
members is the offset of their clocks (algorithm D3). The spread that remains is the error bar: a difference of starts
below three times it is noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import Collectives

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")
"""Nobody can leave before everybody has arrived."""
ERROR_BARS = 3.0
"""Skews below this many errors are not reported."""
MAX_CALLS = 64
"""Calls of a communicator that are looked at."""
_ROUNDS = 4
"""Refinements over all groups at once; the first pass walks from group to group and is off by at most their noise."""


@dataclass(frozen=True)
class Alignment:
    """``time - offset_ns[rank]`` is on the axis of the lowest rank of each connected set of ranks."""

    offset_ns: Mapping[int, int] = field(default_factory=dict)
    error_us: float | None = None
    """Median absolute deviation of the ends after alignment; None when no collective was matched."""

    @property
    def tolerance_ns(self) -> float:
        """Differences of time below this are noise; infinite when nothing was aligned."""
        return float("inf") if self.error_us is None else ERROR_BARS * self.error_us * 1e3


def align(run: Run, collectives: Collectives | None) -> Alignment:
    """Offsets of every rank of *run*; zero where no matched collective connects it to others."""
    ranks = sorted(run.table("ranks")["rank"].unique().to_list())
    if collectives is None or "call" not in collectives.table.columns:
        return Alignment(dict.fromkeys(ranks, 0))
    calls = collectives.table.filter(pl.col("call").is_not_null() & pl.col("wait_ms").is_not_null())
    found = align_calls(calls)
    return Alignment({rank: found.offset_ns.get(rank, 0) for rank in ranks}, found.error_us)


def align_calls(calls: pl.DataFrame) -> Alignment:
    """Offsets from matched calls with ``call, comm, rank, end_ns``: one row per member of each call."""
    if calls.is_empty():
        return Alignment()
    calls = _thinned(calls)
    ranks, who = np.unique(calls["rank"].to_numpy(), return_inverse=True)
    _, call = np.unique(calls["call"].to_numpy(), return_inverse=True)
    ends = calls["end_ns"].to_numpy().astype(np.int64)
    base = int(ends.min())
    relative = (ends - base).astype(np.float64)
    offset, anchor = _walk(relative, who, call, calls["comm"].to_numpy(), ranks.size)
    for _ in range(_ROUNDS):
        rest = relative - offset[who] - _median_by(relative - offset[who], call)[call]
        offset += _median_by(rest, who)
        offset -= offset[anchor]
    error_ns = float(np.median(np.abs(relative - offset[who] - _median_by(relative - offset[who], call)[call])))
    return Alignment(
        {int(rank): round(float(ns)) for rank, ns in zip(ranks, offset, strict=True)},
        error_ns / 1e3,
    )


def _thinned(calls: pl.DataFrame) -> pl.DataFrame:
    """At most MAX_CALLS calls of each communicator, spread evenly: more do not make a median better."""
    order = pl.col("call").rank("dense").over("comm")
    every = (order.max().over("comm") / MAX_CALLS).ceil().cast(pl.Int64)
    return calls.filter(order.cast(pl.Int64) % every == 0)


def _walk(relative: Floats, who: Ints, call: Ints, comm: Ints, ranks: int) -> tuple[Floats, Ints]:
    """First estimate: from each rank already placed to the members of its communicators, largest communicator first.

    Returns the offsets and, per rank, the rank whose clock its connected set is measured by.
    """
    offset, anchor = np.zeros(ranks), np.full(ranks, -1, dtype=np.int64)
    rows_of = {int(c): np.flatnonzero(comm == c) for c in np.unique(comm)}
    members = {c: np.unique(who[rows]) for c, rows in rows_of.items()}
    waiting = sorted(rows_of, key=lambda c: (-members[c].size, c))
    while waiting:
        ready = next((c for c in waiting if (anchor[members[c]] >= 0).any()), waiting[0])
        waiting.remove(ready)
        placed = anchor[members[ready]] >= 0
        first = members[ready][placed][0] if placed.any() else members[ready][0]
        anchor[first] = first if anchor[first] < 0 else anchor[first]
        rows = rows_of[ready]
        theirs = np.full(int(call.max()) + 1, np.nan)
        mine = rows[who[rows] == first]
        theirs[call[mine]] = relative[mine]
        apart = relative[rows] - theirs[call[rows]]
        known = ~np.isnan(apart)
        medians = _median_by(apart[known], who[rows][known], groups=ranks)
        for rank in members[ready]:
            if anchor[rank] < 0 and not np.isnan(medians[rank]):
                offset[rank], anchor[rank] = offset[first] + medians[rank], anchor[first]
    anchor[anchor < 0] = np.flatnonzero(anchor < 0)
    return offset, anchor


def _median_by(values: Floats, group: Ints, groups: int | None = None) -> Floats:
    """Median of *values* within each group id 0 … n-1; NaN for a group without values."""
    size = int(group.max()) + 1 if groups is None else groups
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=size)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    ranked = np.append(values[order], np.nan)
    filled = counts > 0
    low = np.where(filled, starts + (counts - 1) // 2, len(values))
    high = np.where(filled, starts + counts // 2, len(values))
    return np.asarray((ranked[low] + ranked[high]) / 2.0)
