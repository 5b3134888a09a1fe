"""Signals that only ddiag's recorder gives, from what it saw of processes and devices."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Exits:
    """How the training processes of the job's last attempt ended."""

    table: pl.DataFrame
    """As the table ``exits``, a row for each rank that was recorded; beside it out_of_memory_kills: by how much the
    host's count of processes killed for want of memory rose while it was watched (null unknown)."""
    exit_code: int | None
    """Of the whole job, as a shell shows it; None while it runs, or when its supervisor was killed."""
    asked_to_end: str = ""
    """Signal with which somebody told the job to end; empty when nobody did."""
    missing: tuple[int, ...] = ()
    """Ranks of the world of which nothing was recorded."""


RECORDED_FAMILIES: tuple[type, ...] = (Exits,)
