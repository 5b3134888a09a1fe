"""How often something dear is done."""

from __future__ import annotations

import pytest

from ddiag.capture.pace import FIRST_STEPS, Pace

MS = 1_000_000


def _read_steps(pace: Pace, step_ms: float, cost_ns: int, steps: int) -> list[int]:
    found = []
    for step in range(steps):
        if pace.on:
            found.append(step)
            pace.spent(cost_ns)
        pace.step_ended(int((step + 1) * step_ms * MS))
    return found


def test_long_steps_are_all_read() -> None:
    assert _read_steps(Pace(0.001), step_ms=200, cost_ns=150_000, steps=40) == list(range(40))


@pytest.mark.parametrize("step_ms", [1, 7, 50, 90])
def test_short_steps_cost_no_more_than_the_share(step_ms: float) -> None:
    read = _read_steps(Pace(0.001), step_ms=step_ms, cost_ns=100_000, steps=4000)
    assert read[:FIRST_STEPS] == list(range(FIRST_STEPS))
    later = len(read) - FIRST_STEPS
    share = later * 100_000 / (4000 * step_ms * MS)
    assert 0.0004 < share <= 0.00101


def test_what_is_read_at_several_places_of_a_step_is_added_up() -> None:
    pace = Pace(0.001)
    for step in range(1, FIRST_STEPS + 1):
        pace.step_ended(step * 40 * MS)
    assert pace.on
    pace.spent(30_000)
    pace.spent(70_000)
    read = []
    for step in range(FIRST_STEPS + 1, FIRST_STEPS + 5):
        pace.step_ended(step * 40 * MS)
        read.append(pace.on)
    assert read == [False, False, True, True]  # due after 100 ms: the third step, which will end after 120
