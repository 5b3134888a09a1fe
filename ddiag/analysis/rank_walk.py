"""The rows of a table rank by rank, without searching or copying it once per rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

Slices = tuple[pl.DataFrame, dict[int, tuple[int, int]]]


def by_rank(frame: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """(rank, its rows in their order) in ascending order of rank."""
    ordered, slices = rank_slices(frame)
    for rank, (start, length) in slices.items():
        yield rank, ordered.slice(start, length)


def rank_slices(frame: pl.DataFrame) -> Slices:
    """*frame* in rank order (itself when it is already), with offset and length of each rank."""
    ranks = frame["rank"].to_numpy()
    if not (ranks[1:] >= ranks[:-1]).all():
        frame = frame.sort("rank", maintain_order=True)
        ranks = frame["rank"].to_numpy()
    found, start, length = np.unique(ranks, return_index=True, return_counts=True)
    return frame, {int(r): (int(s), int(n)) for r, s, n in zip(found, start, length, strict=True)}
