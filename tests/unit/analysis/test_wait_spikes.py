"""Waits that come every so many steps, as a busy machine records them."""

from __future__ import annotations

import polars as pl
import pytest

from ddiag.analysis.input_wait import _spike_period

REAL = [
    97.5, 0.3, 2.4, 130.1, 0.2, 11.0, 132.5, 0.1, 11.0, 99.5, 0.1, 0.9, 87.4, 0.1, 0.9, 141.2, 0.2, 0.9, 132.2, 0.2,
    1.1, 116.4, 0.2, 1.1, 177.8, 0.1, 0.8, 34.7, 0.2, 0.8, 87.6, 0.3, 0.9, 20.9, 0.2, 0.9, 105.3,
]  # fmt: skip
"""Of a recorded rank with three workers that were too few, while eleven threads wanted each processor."""


def period(*waits: list[float]) -> int | None:
    """Of ranks that waited so long in step 0, 1, 2 …"""
    rows = [(rank, step, wait) for rank, each in enumerate(waits) for step, wait in enumerate(each)]
    return _spike_period(pl.DataFrame(rows, schema=["rank", "step", "wait_ms"], orient="row"))


def test_small_waits_between_and_one_spike_that_fails_to_come_do_not_hide_the_period() -> None:
    assert period(REAL) == 3
    assert period(REAL, REAL) == 3


@pytest.mark.parametrize("gaps", [(3, 4, 3, 4, 3, 4), (2, 5, 3, 7, 4, 2), (1, 1, 1, 1, 1, 1)])
def test_spikes_at_other_distances_have_none(gaps: tuple[int, ...]) -> None:
    waits = [0.2] * (sum(gaps) + 8)
    at = 0
    for gap in gaps:
        waits[at] = 100.0
        at += gap
    assert period(waits) is None


def test_ranks_must_agree() -> None:
    every_fourth = [100.0 if step % 4 == 0 else 0.2 for step in range(36)]
    assert period(every_fourth) == 4
    assert period(REAL, every_fourth) is None
