"""On which steps a dear tier looks: as many as keep its mean cost below the budget, and the same ones on every rank.

Steps are chosen by their number (every k-th, k a power of two), so that ranks which measure different costs still have
the steps of the most careful rank in common.
"""

from __future__ import annotations

FIRST_STEPS = 6
"""Always looked at: they show how the job communicates, and are slow anyway."""
BUDGET = 0.0025
"""Mean share of the step time."""
MOST = 4096


class Share:
    """Every which step."""

    def __init__(self, budget: float = BUDGET) -> None:
        self._budget = budget
        self._step_ns = 0.0
        self._cost_ns = 0.0
        self.every = 1

    def step_ended(self, step_ns: int, cost_ns: int | None) -> None:
        """A step took *step_ns*; looking at it took *cost_ns*, None when it was not looked at."""
        known = cost_ns or 0
        bare_ns = max(1, step_ns - known)
        # The first steps are slow: what they suggest must not make the later ones dear.
        self._step_ns = bare_ns if bare_ns < 0.5 * self._step_ns else _smooth(self._step_ns, bare_ns)
        if cost_ns is not None:
            self._cost_ns = _smooth(self._cost_ns, cost_ns)
        wanted = self._cost_ns / (self._budget * self._step_ns)
        self.every = 1
        while self.every < wanted and self.every < MOST:
            self.every *= 2

    def looks_at(self, step: int) -> bool:
        return step < FIRST_STEPS or step % self.every == 0


def _smooth(so_far: float, new: float) -> float:
    return new if so_far == 0 else 0.7 * so_far + 0.3 * new
