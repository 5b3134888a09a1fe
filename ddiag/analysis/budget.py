"""Where each step of each rank went: parts that exclude each other and sum to the step.

A moment counts for the first of these that is true: compute, communication, copy; else the device was idle and the
cause found by :mod:`ddiag.analysis.idle_causes` counts. A trace without a device has operators as compute, collectives,
loader spans, and the rest is the host's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.host_spans import loader_spans
from ddiag.analysis.intervals import EMPTY, Intervals, covered, intersect, subtract, union
from ddiag.analysis.names import spans_union, times
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, StepBudget

_PARTS = ("compute", "comm_wait", "comm_transfer", "copy", "input", "sync", "host", "idle")
_NS_PER_MS = 1e6
_UNMATCHED = (
    "collectives could not be matched across ranks: waiting and transfer cannot be told apart, all exposed "
    "communication is counted as transfer"
)


def step_budget(
    run: Run, windows: StepWindows, acts: Mapping[int, RankActivity], collectives: Collectives | None
) -> StepBudget | None:
    """Split every step; None when no step has any activity to split."""
    on_device = _on_device(windows, acts)
    ranks = [rank for rank, act in acts.items() if act.on_device == on_device and len(act.busy)]
    steps = windows.table.filter(pl.col("rank").is_in(ranks))
    if not steps.filter("steady").height:
        return None
    parts = []
    for rank in ranks:
        mine = steps.filter(pl.col("rank") == rank)
        act = acts[rank]
        parts.append(_split(mine, _exclusive(run, rank, act, collectives), intersect(act.comm, act.compute)))
    table = pl.concat(parts)
    steady = table.filter("steady")
    return StepBudget(
        table=table,
        step_ms=_median(steady),
        source=windows.source,
        note=_note(windows, acts, ranks, collectives),
        n_steps=steady["step"].n_unique(),
        on_device=on_device,
        excluded_steps=windows.excluded,
        warmup_ms=_median(table.filter(pl.col("step").is_in(list(windows.warm_up)))) if windows.warm_up else None,
    )


def _on_device(windows: StepWindows, acts: Mapping[int, RankActivity]) -> bool:
    """The run is judged by its devices unless hardly any rank shows one."""
    members = windows.table["rank"].unique().to_list()
    return 2 * sum(acts[rank].on_device for rank in members if rank in acts) >= len(members)


def _exclusive(run: Run, rank: int, act: RankActivity, collectives: Collectives | None) -> dict[str, Intervals]:
    """The disjoint parts of everything *rank* did or did not do, except the remainder of its steps."""
    exposed = subtract(act.comm, act.compute)
    wait = _waiting(exposed, rank, collectives)
    copy = subtract(subtract(act.copy, act.compute), act.comm)
    parts = {"compute": act.compute, "comm_wait": wait, "comm_transfer": subtract(exposed, wait), "copy": copy}
    if act.idle is None:
        loader = subtract(spans_union(loader_spans(run, rank)), act.busy)
        return {**parts, "input": loader, "sync": EMPTY, "idle": EMPTY}
    return {**parts, "input": act.idle.input, "sync": act.idle.sync, "host": act.idle.host}


def _waiting(exposed: Intervals, rank: int, collectives: Collectives | None) -> Intervals:
    """Exposed communication in which some matched call waited for a late rank and no other was moving data.

    A call's wait lies at its start: it begins before its last member arrives.
    """
    if collectives is None or "wait_ms" not in collectives.table.columns:
        return EMPTY
    calls = collectives.table.filter(pl.col("rank") == rank)
    start, end = times(calls, "start_ns"), times(calls, "end_ns")
    wait_ns = np.rint(calls["wait_ms"].fill_null(0.0).to_numpy() * _NS_PER_MS).astype(np.int64)
    turn = np.clip(start + wait_ns, start, end)
    return subtract(intersect(exposed, union(start, turn)), union(turn, end))


def _split(steps: pl.DataFrame, parts: Mapping[str, Intervals], overlapped: Intervals) -> pl.DataFrame:
    """Rows of the budget; what no part covers is host time without a device, unexplained idle time with one."""
    start, end = times(steps, "start_ns"), times(steps, "end_ns")
    amounts = {name: covered(spans, start, end) for name, spans in parts.items()}
    (rest,) = set(_PARTS) - set(parts)
    amounts[rest] = end - start - sum(amounts.values())
    to_ms = {f"{name}_ms": amounts[name] / _NS_PER_MS for name in _PARTS}
    return steps.select("rank", "step", "start_ns", "end_ns", "steady").with_columns(
        pl.Series("step_ms", (end - start) / _NS_PER_MS),
        *(pl.Series(name, values) for name, values in to_ms.items()),
        pl.Series("overlapped_comm_ms", covered(overlapped, start, end) / _NS_PER_MS),
    )


def _median(steps: pl.DataFrame) -> float:
    value = steps["step_ms"].median()
    return float(value) if isinstance(value, (int, float)) else 0.0


def _note(
    windows: StepWindows, acts: Mapping[int, RankActivity], ranks: list[int], collectives: Collectives | None
) -> str:
    notes = [windows.note] if windows.note else []
    if any(len(acts[rank].comm) for rank in ranks) and (collectives is None or collectives.matched_ranks < 2):
        notes.append(_UNMATCHED)
    left_out = sorted(set(acts) - set(ranks))
    if left_out:
        notes.append(f"{len(left_out)} rank(s) left out: no activity of the kind the others show")
    return "; ".join(notes)
