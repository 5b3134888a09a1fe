"""Restricts a run to the steps a person asked for."""

from __future__ import annotations

import dataclasses

import polars as pl

from ddiag.analysis.steps import StepWindows
from ddiag.errors import UsageError


def only(windows: StepWindows, first: int, last: int) -> StepWindows:
    """*windows* with exactly the steps *first* … *last* (both included) as steady: a choice overrides a judgement.

    Raises UsageError, saying which steps there are, when none of them was recorded.
    """
    numbers = windows.table["step"].to_list()
    chosen = windows.table.with_columns(steady=pl.col("step").is_between(first, last))
    if not chosen["steady"].any():
        there = f"steps {min(numbers)} to {max(numbers)}" if numbers else "no steps"
        raise UsageError(f"--steps {first}:{last}: none of these was recorded (the evidence has {there})")
    left_out = tuple(sorted(set(chosen.filter(~pl.col("steady"))["step"].unique().to_list())))
    note = "; ".join(part for part in (windows.note, f"only steps {first} to {last}, as asked") if part)
    return dataclasses.replace(windows, table=chosen, note=note, excluded=left_out)
