"""Which optimizer step ends a training step."""

from __future__ import annotations

import pytest

from ddiag.capture.boundaries import Boundaries, Turn


def _steps(pattern: str) -> int:
    """Training steps counted when optimizers step in the order of *pattern*, the held one included."""
    boundaries, ended = Boundaries(), 0
    for name in pattern:
        turn = boundaries.after(ord(name))
        ended += {Turn.CLOSE: 1, Turn.CONFIRM: 1, Turn.CONFIRM_AND_CLOSE: 2}.get(turn, 0)
    return ended + boundaries.holding


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("A", 1),
        ("AAAA", 4),
        ("ABABAB", 3),
        ("ABCABCABC", 3),
        ("AB", 1),
        ("ABABABA", 3),
        ("AABAAB", 4),
    ],
)
def test_a_round_of_optimizers_is_a_step(pattern: str, steps: int) -> None:
    assert _steps(pattern) == steps


def test_when_the_closing_one_retires_the_next_takes_over() -> None:
    assert _steps("AAA" + "BBBB") == 6
    assert _steps("ABAB" + "AAA") == 4


def test_when_the_closing_one_is_destroyed_no_step_is_lost() -> None:
    boundaries = Boundaries()
    assert [boundaries.after(1), boundaries.after(1)] == [Turn.HOLD, Turn.CONFIRM_AND_CLOSE]
    assert not boundaries.retire(2)
    assert boundaries.after(1) is Turn.CLOSE
    assert not boundaries.retire(1)
    assert boundaries.after(3) is Turn.HOLD
    assert boundaries.retire(3)
    assert [boundaries.after(4), boundaries.after(4)] == [Turn.HOLD, Turn.CONFIRM_AND_CLOSE]


def test_once_an_engine_says_optimizers_do_not() -> None:
    boundaries = Boundaries()
    boundaries.leave_to_engine()
    assert [boundaries.after(1), boundaries.after(1)] == [Turn.INSIDE, Turn.INSIDE]
    assert not boundaries.holding
