"""The recorder's clock: ``time.monotonic_ns``, with one pair that ties it to the wall."""

from __future__ import annotations

import time
from typing import NamedTuple

now_ns = time.monotonic_ns


class Anchor(NamedTuple):
    """The same instant on both clocks."""

    wall_ns: int
    mono_ns: int


def anchor() -> Anchor:
    """The tightest of a few readings, so that an interrupt between two clocks does not shift a whole rank."""
    best, width = Anchor(0, 0), None
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if width is None or after - before < width:
            best, width = Anchor(wall, (before + after) // 2), after - before
    return best
