"""The period of a sequence of names."""

from __future__ import annotations

import numpy as np
import pytest

from ddiag.analysis.period import period, period_starts


def codes(*blocks: str) -> np.ndarray:
    return np.frombuffer("".join(blocks).encode(), dtype=np.uint8).astype(np.int64)


@pytest.mark.parametrize("step", ["ab", "abcde", "aabcb", "abababx"])
def test_the_shortest_period_of_a_repeating_sequence(step: str) -> None:
    assert period(codes(step * 6)) == len(step)


def test_layers_inside_a_step_lose_to_the_step() -> None:
    assert period(codes(("e" + "lmn" * 8 + "hNML" * 8) * 4)) == 1 + 24 + 32


def test_a_sequence_must_repeat_three_times() -> None:
    assert period(codes("abcdefgh" * 2)) is None


def test_one_name_over_and_over_has_no_period() -> None:
    assert period(codes("a" * 50)) is None


def test_noise_has_no_period() -> None:
    assert period(np.random.default_rng(7).integers(0, 20, 500)) is None


def test_an_odd_element_now_and_then_is_tolerated() -> None:
    sequence = codes("abcdefghijklmnopqrstuvwxyz" * 10)
    sequence[[40, 170]] = 1
    assert period(sequence) == 26


def test_periods_begin_after_the_longest_pause() -> None:
    sequence = codes("abcd" * 5)
    start = np.concatenate([100 * k + np.array([0, 10, 60, 70]) for k in range(5)])  # pause before the third name
    starts = period_starts(sequence, start, start + 9)
    assert starts.tolist() == [60, 160, 260, 360, 460]


def test_too_short_for_any_period() -> None:
    assert period_starts(codes("ab"), np.array([0, 1]), np.array([1, 2])).size == 0
