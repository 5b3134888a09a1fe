"""How often something dear may be done: as often as keeps it below a share of the time."""

from __future__ import annotations

MEMORY_SHARE = 0.0005
"""Of reading memory counters. Between a step's kernels, which have driven everything out of the caches, three readings
of the resident set take 90 µs: steps of 180 ms and more are all read, shorter ones in part."""
FIRST_STEPS = 8
"""Always read: they are slow, and memory grows in them."""


class Pace:
    """Whole steps are chosen, so that what is read at several places of a step belongs together."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._spent_ns = 0
        self._due_ns = 0
        self._steps = 0
        self._ended_ns = 0
        self.on = True
        """It is done in the running step."""

    def spent(self, took_ns: int) -> None:
        self._spent_ns += took_ns

    def step_ended(self, now_ns: int) -> None:
        """Choose whether the step that begins now is one."""
        if self.on:
            self._due_ns = now_ns + int(self._spent_ns / self._share)
            self._spent_ns = 0
        took_ns, self._ended_ns = now_ns - self._ended_ns, now_ns
        self._steps += 1
        # It will last as long as the one before.
        self.on = self._steps < FIRST_STEPS or now_ns + took_ns >= self._due_ns
