"""Which steps stand for the run: neither warm-up nor cut off, and present on most ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ddiag.analysis.host_names import is_compilation
from ddiag.analysis.intervals import Intervals, Times, covered
from ddiag.analysis.names import of_kind, spans_union, times, where_name
from ddiag.analysis.rank_rows import rows_of
from ddiag.model.run import Run

_OUTLIER = 1.5
"""A leading step this much longer than the median of the rest is warm-up …"""
_EXPLAINED_OUTLIER = 1.15
"""… or this much, when compilation and allocation explain half of the excess."""
_CUT_OFF = 0.6
"""A step at the edge of a capture that issued less than this share of the median work is cut off."""
_ENOUGH = 3
"""With fewer steps there is nothing to compare a step with."""


@dataclass(frozen=True)
class Judged:
    table: pl.DataFrame
    """The steps with the column ``steady``."""
    excluded: tuple[int, ...]
    """Steps that are steady on no rank."""
    notes: tuple[str, ...]
    warm_up: tuple[int, ...] = ()
    """Those excluded because they are warm-up."""


def judge(run: Run, steps: pl.DataFrame) -> Judged:
    """Mark the steady steps. Judged by the same evidence on all ranks, so that one late rank excludes nothing."""
    numbers = steps["step"].n_unique()
    if numbers < _ENOUGH:
        note = (
            f"only {numbers} step{'s' if numbers > 1 else ''}: warm-up cannot be told from the rest" if numbers else ""
        )
        return Judged(steps.with_columns(steady=pl.lit(value=True)), (), (note,) if note else ())
    rare = _rare(steps)
    cut = _cut_off(run, steps)
    whole = steps.filter(~pl.Series(rare | cut))
    warm_up = _warm_up(run, whole)
    steady = ~rare & ~cut & ~steps["step"].is_in(list(warm_up)).to_numpy()
    if not steady.any():
        steady = np.ones(steps.height, dtype=bool)
    table = steps.with_columns(pl.Series("steady", steady))
    lost = set(steps["step"]) - set(table.filter("steady")["step"])
    warm_up = tuple(step for step in warm_up if step in lost)
    return Judged(table, tuple(sorted(lost)), _notes(table, warm_up, lost), warm_up)


def _rare(steps: pl.DataFrame) -> np.ndarray:
    """Steps that at most half of the ranks have: they cannot be compared."""
    ranks = steps["rank"].n_unique()
    return steps.select(pl.col("rank").n_unique().over("step") <= ranks / 2).to_series().to_numpy() & (ranks > 1)


def _cut_off(run: Run, steps: pl.DataFrame) -> np.ndarray:
    """Steps at the edge of a chain in which far less was issued than in the rest of the rank's steps."""
    counted = steps.with_columns(pl.Series("_work", _issued(run, steps)))
    first = _starts_chain()
    last = first.shift(-1, fill_value=True).over("rank")
    few = pl.col("_work") < _CUT_OFF * pl.col("_work").median().over("rank")
    return counted.select((first | last) & few & (pl.len().over("rank") >= _ENOUGH)).to_series().to_numpy()


def _starts_chain() -> pl.Expr:
    """The step does not follow another one directly."""
    return (pl.col("host_start_ns") != pl.col("host_end_ns").shift(1).over("rank")).fill_null(value=True)


def _issued(run: Run, steps: pl.DataFrame) -> Times:
    """Pieces of work per step: launches, else kernels, else operators (whatever the evidence has)."""
    for name, begin, end in (
        ("launches", "host_start_ns", "host_end_ns"),
        ("kernels", "start_ns", "end_ns"),
        ("ops", "host_start_ns", "host_end_ns"),
    ):
        if run.has(name):
            return _count_starts(run, name, steps, (begin, end))
    return np.zeros(steps.height, dtype=np.int64)


def _count_starts(run: Run, table: str, steps: pl.DataFrame, window: tuple[str, str]) -> Times:
    counts = np.zeros(steps.height, dtype=np.int64)
    owner = steps["rank"].to_numpy()
    for rank in np.unique(owner):
        mine = owner == rank
        at = np.sort(times(rows_of(run, table, int(rank)), "start_ns"))
        low, high = (np.searchsorted(at, times(steps, edge)[mine]) for edge in window)
        counts[mine] = high - low
    return counts


def _warm_up(run: Run, steps: pl.DataFrame) -> tuple[int, ...]:
    """Leading steps of each chain that are far longer than the rest, by the median over ranks."""
    lost_ns = pl.Series("_lost", _set_up_ns(run, steps))
    per_step = (
        steps.with_columns(
            lost_ns, _starts_chain().alias("_first"), (pl.col("end_ns") - pl.col("start_ns")).alias("_ns")
        )
        .group_by("step")
        .agg(pl.col("_ns", "_lost", "host_start_ns").median(), pl.col("_first").mean())
        .sort("host_start_ns")
    )
    length, lost = per_step["_ns"].to_numpy(), per_step["_lost"].to_numpy()
    kept = np.ones(length.size, dtype=bool)
    for first in np.flatnonzero(per_step["_first"].to_numpy() > 0.5):
        for index in range(first, length.size):
            rest = kept.copy()
            rest[first : index + 1] = False
            if rest.sum() < max(2, kept.size // 2) or not _is_outlier(length[index], lost[index], length[rest]):
                break
            kept[index] = False
    return tuple(per_step["step"].to_numpy()[~kept].tolist())


def _is_outlier(length: float, lost: float, rest: np.ndarray) -> bool:
    typical = float(np.median(rest))
    excess = length - typical
    return length > _OUTLIER * typical or (length > _EXPLAINED_OUTLIER * typical and lost >= 0.5 * excess)


def _set_up_ns(run: Run, steps: pl.DataFrame) -> Times:
    """Time per step in allocation calls and compilation: what a first step spends and a later one does not."""
    allocations = of_kind(run.table("launches"), "alloc", "free").select("rank", "start_ns", "end_ns")
    compilation = where_name(run.table("ops"), is_compilation).select("rank", "start_ns", "end_ns")
    spans = pl.concat([allocations, compilation])
    lost = np.zeros(steps.height, dtype=np.int64)
    owner = steps["rank"].to_numpy()
    for rank in np.unique(owner):
        mine = owner == rank
        busy: Intervals = spans_union(spans.filter(pl.col("rank") == rank))
        lost[mine] = covered(busy, times(steps, "host_start_ns")[mine], times(steps, "host_end_ns")[mine])
    return lost


def _notes(table: pl.DataFrame, warm_up: tuple[int, ...], lost: set[int]) -> tuple[str, ...]:
    notes = []
    if warm_up:
        notes.append(f"step{'s' if len(warm_up) > 1 else ''} {_listed(warm_up)} left out as warm-up")
    other = sorted(lost - set(warm_up))
    if other:
        notes.append(f"step{'s' if len(other) > 1 else ''} {_listed(other)} left out: cut off or missing on most ranks")
    partly = table.filter(~pl.col("steady") & ~pl.col("step").is_in(sorted(lost)))
    if partly.height:
        notes.append(f"{partly.height} step(s) of single ranks left out as cut off")
    return tuple(notes)


def _listed(steps: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(step) for step in steps[:5]) + (" …" if len(steps) > 5 else "")
