"""Does one rank stand out, do the late ranks change, or are the same several ranks late together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.blame import Blame, blame
from ddiag.analysis.exposure import exposed_waiting_ms, with_resumption
from ddiag.analysis.names import times
from ddiag.analysis.steps import StepWindows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STAND_OUT_SHARE = 0.5
"""Share of all waiting that one rank must cause to stand out …"""
STAND_OUT_EXCESS = 0.15
"""… and by how much it must exceed its fair share (with two ranks, a half is chance)."""
MIN_LEAD = 1.5
"""… and how many times the share of the runner-up it must be (two ranks that are each half of it are two)."""
MAX_P_VALUE = 0.05
"""Chance, were all ranks alike, of one rank being last as often as observed."""
MIN_T = 5.0
"""Or: how many standard errors its share of the waiting per step lies above the fair share. With few steps and ranks,
counting cannot show what the amounts do."""
MIN_AVOIDABLE = 0.5
"""Share of the waiting a rank causes that would vanish if it alone came with the second-latest; below, others are
nearly as late and the rank is not the only one to name."""
MIN_AVOIDABLE_ONCE = 0.2
"""The same with too few steps to see who is late together."""
MIN_WAIT_SHARE = 0.01
"""Waiting / step that a rank must cause for it to be worth a name."""
ROTATING_WAIT_SHARE = 0.02
"""Waiting / step from which a changing late rank is worth a word."""
REPEATED_STEPS = 3
"""Steps from which it can be seen whether the same ranks are late again."""
MIN_STEPS = 5
"""Steps from which repetition is judged by step; below, by call."""
FIXED_SHARE = 0.5
"""Share of the variation of waiting that goes with the rank, from which the late ranks do not change."""


@dataclass(frozen=True)
class Judgement:
    """Blame for waiting, and what it means."""

    blame: Blame
    waits: Floats
    """(rank, step): exposed waiting of each rank, ms."""
    wait_ms: float
    step_ms: float

    @classmethod
    def of(
        cls, waits: pl.DataFrame, windows: StepWindows, acts: Mapping[int, RankActivity], *, tie_ms: float
    ) -> Judgement:
        found = blame(with_resumption(waits, acts), tie_ms=tie_ms)
        spent = exposed_waiting_ms(waits, windows, acts).filter(pl.col("rank").is_in(found.ranks.tolist()))
        grid = np.zeros((found.ranks.size, found.steps.size))
        inside = spent.filter(pl.col("step").is_in(found.steps.tolist()))
        at = (
            np.searchsorted(found.ranks, inside["rank"].to_numpy()),
            np.searchsorted(found.steps, inside["step"].to_numpy()),
        )
        grid[at] = inside["wait_ms"].to_numpy()
        steady = windows.table.filter(pl.col("steady") & pl.col("rank").is_in(found.ranks.tolist()))
        length = (times(steady, "end_ns") - times(steady, "start_ns")).mean() / 1e6 if steady.height else 0.0
        return cls(found, grid, float(grid.mean()), float(length))

    @property
    def wait_share(self) -> float:
        return self.wait_ms / self.step_ms if self.step_ms > 0 else 0.0

    def shares(self) -> Floats:
        """Share of all waiting that goes back to each rank."""
        return _shares(self.blame.caused_ms)

    def _decisive(self) -> Floats:
        """(rank, step): exposed waiting is what costs time; without any, all waiting."""
        return self.blame.exposed_ms if self.blame.exposed_ms.sum() > 0 else self.blame.caused_ms

    def _worst_in(self) -> tuple[Ints, int]:
        """Per rank the steps in which it caused most of the waiting, and the number of steps with waiting."""
        caused = self._decisive()
        counted = caused.sum(axis=0) > 0
        return np.bincount(caused[:, counted].argmax(axis=0), minlength=len(caused)), int(counted.sum())

    def steps_last(self) -> Floats:
        """Share of steps with waiting in which each rank caused most of it."""
        worst, counted = self._worst_in()
        return np.asarray(worst / max(counted, 1))

    def p_values(self) -> Floats:
        """Binomial chance of being last this often if all ranks were alike: by step, or by call with few steps."""
        last, trials = self._worst_in()
        of = np.full(len(last), trials)
        if trials < MIN_STEPS:
            last, of = self.blame.last_count, self.blame.calls
        chance = 1.0 / len(self.blame.ranks)
        return np.array([_at_least(int(k), int(n), chance) for k, n in zip(last, of, strict=True)])

    def standing_out(self) -> int | None:
        """The rank that causes most of the waiting, more often than chance, and enough of it to matter."""
        share, p_values = _shares(self._decisive()), self.p_values()
        worst = int(share.argmax())
        needed = max(STAND_OUT_SHARE, 1.0 / len(share) + STAND_OUT_EXCESS)
        stands_out = (
            share[worst] >= needed
            and share[worst] >= MIN_LEAD * np.delete(share, worst).max()
            and self.shares()[worst] >= 0.8 * needed
            and (p_values[worst] <= MAX_P_VALUE or self._steady_excess(worst) >= MIN_T)
            and (len(self.blame.steps) < REPEATED_STEPS or self.steps_last()[worst] >= 0.5)
            and self.wait_share * share[worst] >= MIN_WAIT_SHARE
            and self.blame.avoidable_ms[worst].sum() >= self._min_avoidable() * self.blame.caused_ms[worst].sum()
        )
        return int(self.blame.ranks[worst]) if stands_out else None

    def _min_avoidable(self) -> float:
        return MIN_AVOIDABLE if len(self.blame.steps) >= REPEATED_STEPS else MIN_AVOIDABLE_ONCE

    def _steady_excess(self, rank: int) -> float:
        """t statistic of this rank's share of the waiting per step against the fair share; 0 with under 3 steps."""
        caused = self._decisive()
        total = caused.sum(axis=0)
        share = caused[rank, total > 0] / total[total > 0]
        if share.size < 3:
            return 0.0
        error = max(float(share.std(ddof=1)), 1e-3) / np.sqrt(share.size)
        return float((share.mean() - 1.0 / len(caused)) / error)

    def _fixed_share(self) -> float:
        """Share of the variation of waiting over ranks and steps that goes with the rank (0: chance, 1: all of it)."""
        centred = self.waits - self.waits.mean(axis=0)
        total = float((centred**2).sum())
        return float((centred.mean(axis=1) ** 2).sum() * self.waits.shape[1]) / total if total > 0 else 0.0

    def rotates(self) -> bool:
        """Waiting is large and the late rank changes from step to step."""
        if self.wait_share < ROTATING_WAIT_SHARE:
            return False
        return len(self.blame.steps) < REPEATED_STEPS or self._fixed_share() < FIXED_SHARE

    def late_together(self) -> tuple[int, ...]:
        """Two or more ranks that come late every step and cause most of the waiting."""
        if (
            self.wait_share < ROTATING_WAIT_SHARE
            or len(self.blame.steps) < REPEATED_STEPS
            or self._fixed_share() < FIXED_SHARE
        ):
            return ()
        mean = self.waits.mean(axis=1)
        late = mean < mean.max() / 2
        theirs = _shares(self._decisive())[late].sum()
        return tuple(self.blame.ranks[late].tolist()) if late.sum() > 1 and theirs >= STAND_OUT_SHARE else ()


def _shares(caused: Floats) -> Floats:
    total = caused.sum()
    return np.asarray(caused.sum(axis=1) / total if total > 0 else np.zeros(len(caused)))


def _at_least(successes: int, trials: int, chance: float) -> float:
    """P(X >= successes) of a binomial."""
    if successes <= 0:
        return 1.0
    if trials > 400:
        return _at_least_log(successes, trials, chance)
    return float(sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes, trials + 1)))


def _at_least_log(successes: int, trials: int, chance: float) -> float:
    """The same in logarithms: with many trials the terms underflow or the coefficients overflow."""
    k = np.arange(successes, trials + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    terms = logs[trials] - logs[k] - logs[trials - k] + k * np.log(chance) + (trials - k) * np.log1p(-chance)
    return float(min(np.exp(terms).sum(), 1.0))
