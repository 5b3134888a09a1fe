"""When a job that makes no progress is taken for one that hangs.

Nothing of a rank has begun or ended for several of its steps: that is an alarm. Some work takes long and is none: the
first step, a compilation, a checkpoint, an evaluation. A rank at such work is left alone, and so are those that wait
for it, but only for as long as such work may reasonably keep others waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddiag.supervise.progress import FIRST_STEP, Standing

LEAST_S = 20.0
"""Shorter pauses are told by the report at the end."""
STEPS = 4.0
"""How many of its longest steps of late a rank may be quiet."""
_ALONE_S: Mapping[str, float] = {FIRST_STEP: 300.0, "checkpoint": 600.0, "evaluation": 300.0, "compile": 600.0}
"""How long a rank may be quiet at such work."""
_WAITED_FOR_S: Mapping[str, float] = {FIRST_STEP: 120.0, "checkpoint": 120.0, "evaluation": 30.0, "compile": 120.0}
"""How long others may wait for one that is at such work."""
_TIMES_LONGEST = 3.0


@dataclass(frozen=True)
class Alarm:
    """Ranks that do not go on."""

    ranks: tuple[int, ...]
    quiet_s: float
    """Since the first of them stands still."""
    limits_s: Mapping[int, float]
    """rank -> how long it may be quiet, of all ranks."""


def limits(standings: Sequence[Standing], after_s: float | None, *, patience: float = 1.0) -> dict[int, float]:
    """How long each rank may be quiet. *after_s* is what the user set instead of a multiple of the usual step;
    *patience* grows with every alarm that was none."""
    at_work = [one for one in standings if one.busy_with and one.alive]
    waited_for_s = max((_waited_for(one) for one in at_work), default=0.0)
    return {one.rank: patience * max(_own(one, after_s), 0.0 if one.busy_with else waited_for_s) for one in standings}


def judge(standings: Sequence[Standing], after_s: float | None, *, patience: float = 1.0) -> Alarm | None:
    """The alarm that *standings* (the ranks of one host that have not ended) give; None while all is well.

    One rank standing still is enough: somebody will have to wait for it, or it for somebody.
    """
    allowed = limits(standings, after_s, patience=patience)
    still = [one for one in standings if one.quiet_s > allowed[one.rank]]
    if not still:
        return None
    return Alarm(tuple(one.rank for one in still), max(one.quiet_s for one in still), allowed)


def _own(one: Standing, after_s: float | None) -> float:
    if one.busy_with and one.alive:
        return max(_ALONE_S[one.busy_with], _TIMES_LONGEST * one.longest_s)
    return after_s if after_s is not None else max(LEAST_S, STEPS * one.usual_s)


def _waited_for(one: Standing) -> float:
    return max(_WAITED_FOR_S[one.busy_with], _TIMES_LONGEST * one.longest_s)
