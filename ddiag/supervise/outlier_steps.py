"""Steps that take twice as long as the others, again and again: when the next one is due.

A single one cannot be profiled any more when it is known; but many come at a fixed distance (a metric every ten steps,
a flush, a garbage collection), and others often enough that a few steps hold one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LONGER = 2.0
"""How many times the usual duration is an outlier …"""
_LONGER_S = 0.005
"""… if it is as much longer: the steps of tiny models jitter."""
_EQUAL, _ANY = 3, 4
"""Outliers at equal distances, and at any distances, from which the next one is expected."""
_REMEMBERED = 8
_MOST_STEPS = 20
"""Of a window that shall hold an outlier that comes at any time."""
_SURE = 1.5
"""Steps looked at / mean distance of outliers, so that most windows hold one."""


@dataclass(frozen=True)
class Expected:
    """Where to look for the next outlier."""

    first: int
    last: int
    reason: str


class OutlierSteps:
    """What is known of outliers."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._found: list[int] = []
        self._longest_s = 0.0
        self._before = -2
        """The outlier before, also one that continues another."""

    def take(self, step: int, seconds: float, usual_s: float) -> bool:
        """Note a step that has ended; whether it is an outlier, and not the continuation of one."""
        if seconds < LONGER * usual_s or seconds - usual_s < _LONGER_S:
            return False
        continues, self._before = step == self._before + 1, step
        if continues:
            return False
        self._found = [*self._found, step][-_REMEMBERED:]
        self._longest_s = max(self._longest_s, seconds)
        return True

    def expected(self, earliest: int, usual_s: float, around: int) -> Expected | None:
        """The steps from *earliest* on in which the next outlier should be; *around* of them if they are regular."""
        distances = [after - before for before, after in zip(self._found, self._found[1:], strict=False)]
        latest = distances[-(_EQUAL - 1) :]
        if len(latest) == _EQUAL - 1 and len(set(latest)) == 1:
            (distance,) = set(latest)
            ahead = math.ceil((earliest + around // 2 - self._found[-1]) / distance)
            first = self._found[-1] + max(ahead, 1) * distance - around // 2
            return Expected(first, first + around - 1, self._reason(f"one step in {distance}", usual_s))
        latest = distances[-(_ANY - 1) :]
        steps = math.ceil(_SURE * sum(latest) / max(len(latest), 1))
        if len(latest) == _ANY - 1 and steps <= _MOST_STEPS:
            return Expected(earliest, earliest + max(steps, around) - 1, self._reason("now and then a step", usual_s))
        return None

    def _reason(self, which: str, usual_s: float) -> str:
        return f"{which} takes up to {1e3 * self._longest_s:.4g} ms instead of {1e3 * usual_s:.4g} ms"
