"""Time of the training thread between an update and the next batch that is in no phase."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ddiag.analysis.intervals import Intervals, Times, merge, subtract, union
from ddiag.analysis.names import spans_union, times
from ddiag.analysis.per_step import NS_PER_MS, host_windows, ranks_with_steps
from ddiag.analysis.recorded.marks import marks
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals_recorded import UnmarkedTime

_AFTER = ("optimizer", "zero_grad", "clip", "checkpoint", "evaluation", "logging")
"""Phases after which a step is over but for what the script does of its own. After an input or inside forward and
backward unmarked time may be the model's."""


def unmarked_time(run: Run, windows: StepWindows) -> UnmarkedTime | None:
    """None where no rank has steady steps with phases."""
    per_rank: dict[int, float] = {}
    after: Counter[str] = Counter()
    for rank in ranks_with_steps(windows):
        rows = marks(run, rank)
        if rows.is_empty():
            continue
        starts, ends = host_windows(windows, rank)
        gaps = subtract(union(starts, ends), merge(spans_union(rows)))
        last = _phase_before(gaps, times(rows, "end_ns"), rows["phase"].cast(str).to_list())
        ns = 0
        for (begin, end), phase in zip(gaps.tolist(), last, strict=True):
            if phase in _AFTER:
                after[phase] += end - begin
                ns += end - begin
        per_rank[rank] = ns / len(starts) / NS_PER_MS
    if not per_rank:
        return None
    return UnmarkedTime(per_rank, after.most_common(1)[0][0] if after else "")


def _phase_before(gaps: Intervals, ends: Times, phases: list[str]) -> list[str]:
    """For each gap the phase that ended last before it; empty for the first ones."""
    order = np.argsort(ends, kind="stable")
    place = np.searchsorted(ends[order], gaps[:, 0], side="right") - 1
    return [phases[order[at]] if at >= 0 else "" for at in place]
