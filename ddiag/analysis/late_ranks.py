"""Who arrives last at synchronising collectives, and what everybody else waits for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.blame import MIN_TIE_MS, members_by_rank
from ddiag.analysis.clock import ERROR_BARS
from ddiag.analysis.intervals import covered
from ddiag.analysis.judgement import MIN_WAIT_SHARE, Judgement
from ddiag.analysis.lateness import PARTS, cause, differences
from ddiag.analysis.names import times
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, LateRanks

FIRST_CALL_RATIO = 2.0
"""Waiting of the first call recorded / the most of any later one, from which it stems from the profilers' start."""
MIN_COMPARED = 0.75
"""Share of all ranks' steps in which calls must have been compared for a rank to be named."""
UNSEEN_RATIO = 0.5
"""Waiting for ranks without a trace / waiting for ranks with one, up to which the latter may be named."""


def late_ranks(
    run: Run, windows: StepWindows, acts: Mapping[int, RankActivity], collectives: Collectives | None
) -> LateRanks | None:
    """Blame for waiting; None where no call could be compared over at least two ranks."""
    if collectives is None:
        return None
    usable = collectives.table.filter(pl.col("matched") & pl.col("wait_ms").is_not_null())
    waits, note = _without_first_calls(usable, windows)
    if waits["rank"].n_unique() < 2:
        return None
    judged = Judgement.of(waits, windows, acts, tie_ms=_tie_ms(collectives))
    unseen = _incomparable(usable, collectives) or _unseen(waits, _world_size(run), judged.step_ms)
    persistent = None if unseen else judged.standing_out()
    table = _table(run, windows, acts, waits, judged)
    together = judged.late_together() if persistent is None and not unseen else ()
    notes = [note, unseen, collectives.note]
    return LateRanks(
        table=table,
        wait_ms_per_step=judged.wait_ms,
        wait_share=judged.wait_share,
        persistent_rank=persistent,
        rotating=persistent is None and not unseen and judged.rotates(),
        collectives=waits["call"].n_unique(),
        groups=tuple(sorted(waits["group"].unique().to_list())),
        note="; ".join(part for part in notes if part),
        late_together=together,
    )


def _best_ms() -> pl.Expr:
    """How long a call should transfer: the best of its size, or twice what the best rate of any size gives."""
    rate = (pl.col("bytes") / pl.col("transfer_ms")).max().over("comm", "op")
    return pl.min_horizontal(pl.col("transfer_ms").min().over("comm", "op", "bytes"), 2.0 * pl.col("bytes") / rate)


def _world_size(run: Run) -> int | None:
    sizes = run.table("ranks")["world_size"].drop_nulls().to_list()
    return max(sizes) if sizes else None


def _tie_ms(collectives: Collectives) -> float:
    error_us = collectives.clock_error_us
    return max(MIN_TIE_MS, ERROR_BARS * error_us / 1e3 if error_us is not None else 0.0)


def _without_first_calls(waits: pl.DataFrame, windows: StepWindows) -> tuple[pl.DataFrame, str]:
    """Leave out a communicator's first call when it waits far longer than any later one and no step came before it:
    profilers start at different times.
    """
    if waits["step"].n_unique() < 2:
        return waits, "one step only: lateness at its first call may stem from before the capture"
    if windows.excluded:
        return waits, ""
    marked = waits.with_columns(first=pl.col("call") == pl.col("call").min().over("comm"))
    later_ms = pl.col("wait_ms").filter(~pl.col("first")).max().over("comm")
    marked = marked.with_columns(odd=pl.col("first") & (pl.col("wait_ms") > FIRST_CALL_RATIO * later_ms))
    kept = marked.filter(~pl.col("odd").any().over("call")).drop("first", "odd")
    if kept.height == waits.height:
        return waits, ""
    return (
        kept,
        "the first call of a group was left out: it waits far longer than all later ones",
    )


def _incomparable(waits: pl.DataFrame, collectives: Collectives) -> str:
    """Why the late rank may be one whose calls could not be compared, or '' when those of nearly all steps could."""
    compared, traced = (frame.select("rank", "step").n_unique() for frame in (waits, collectives.table))
    if compared >= MIN_COMPARED * traced:
        return ""
    share = f"{compared} of {traced} steps of all ranks"
    return f"calls could be compared in only {share}: the late rank may be another"


def _unseen(waits: pl.DataFrame, world_size: int | None, step_ms: float) -> str:
    """Why the late rank may be one without a trace, or '' when all members were seen or someone seen was last.

    The last member to arrive only transfers. What even the shortest durations exceed the best of their kind by is
    waiting for somebody without a trace.
    """
    waits = waits.with_columns(size=pl.coalesce("group_size", pl.lit(world_size, dtype=pl.Int32)))
    partial = waits.filter(pl.col("ranks_matched") < pl.col("size"))
    if partial.height * 2 < waits.height or partial.is_empty():
        return ""
    calls = partial.unique("call").with_columns(best=_best_ms())
    hidden_ms = float((calls["transfer_ms"] - calls["best"]).sum()) / calls["step"].n_unique()
    seen_ms = float(partial["wait_ms"].sum()) / max(partial.select("rank", "step").n_unique(), 1)
    repeated = calls.height >= 4 * calls.select("comm", "op", "bytes").n_unique()
    if repeated and hidden_ms <= UNSEEN_RATIO * seen_ms + MIN_WAIT_SHARE * step_ms:
        return ""
    seen, size = int(partial["ranks_matched"].to_numpy().max()), int(partial["size"].to_numpy().max())
    return f"{seen} of {size} members have a trace: the late rank may be one without"


def _table(
    run: Run, windows: StepWindows, acts: Mapping[int, RankActivity], waits: pl.DataFrame, judged: Judgement
) -> pl.DataFrame:
    peers = members_by_rank(waits)
    excess = {int(row["rank"]): row for row in differences(run, windows, acts, peers).iter_rows(named=True)}
    wait_ms = dict(zip(judged.blame.ranks.tolist(), judged.waits.mean(axis=1).tolist(), strict=True))
    share, steps_last, p_values = judged.shares(), judged.steps_last(), judged.p_values()
    rows = []
    for at, rank in enumerate(judged.blame.ranks.tolist()):
        own = excess.get(rank, {})
        late_ms = float(np.median([wait_ms[peer] for peer in peers[rank]])) - wait_ms[rank]
        rows.append(
            {
                "rank": rank,
                "last_count": int(judged.blame.last_count[at]),
                "collectives": int(judged.blame.calls[at]),
                "blame_ms": float(judged.blame.caused_ms[at].sum()),
                "blame_share": float(share[at]),
                "steps_last": float(steps_last[at]),
                "p_value": float(p_values[at]),
                **{name: own.get(name) for name in _DIFFERENCES},
                "cause": cause(own, late_ms, _compute_ms(windows, acts, rank)),
                "exposed_blame_ms": float(judged.blame.exposed_ms[at].sum()),
                "avoidable_ms": float(judged.blame.avoidable_ms[at].sum()),
            }
        )
    types = {"rank": pl.Int32, **dict.fromkeys(_DIFFERENCES, pl.Float64)}
    return pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)


_DIFFERENCES = (*PARTS, "kernel_slowdown")


def _compute_ms(windows: StepWindows, acts: Mapping[int, RankActivity], rank: int) -> float | None:
    steps = windows.table.filter(pl.col("steady") & (pl.col("rank") == rank))
    if rank not in acts or steps.is_empty():
        return None
    inside = covered(acts[rank].compute, times(steps, "start_ns"), times(steps, "end_ns"))
    return float(inside.sum()) / steps.height / 1e6
