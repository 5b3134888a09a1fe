"""Numbers as traces write them, to int64 columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddiag.ingest.values import BAD_TIME, Clock, ints, to_int


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7), ("7", 7), ("stream 7", 7), ("-3", -3), (7.0, 7), (None, -1), ("x", -1), (float("nan"), -1), ([], -1),
        (2**64 - 1, -1 + 0), (2**63, -(2**63)), ("thread 12 (python)", 12),
    ],
)  # fmt: skip
def test_a_number_is_read_however_it_is_written(value: object, number: int) -> None:
    assert to_int(value, -1) == number


def test_integers_with_gaps_and_text_become_one_column() -> None:
    assert ints([1, None, 3]).tolist() == [1, -1, 3]
    assert ints([1, "stream 20", None, 4.0, 2**63]).tolist() == [1, 20, -1, 4, -(2**63)]
    assert ints([]).dtype == np.int64


@pytest.mark.parametrize(
    ("given", "ns"),
    [
        ([1_700_000_000_000_001, 1_700_000_000_000_002], [1_700_000_000_000_001_000, 1_700_000_000_000_002_000]),
        ([1365627862757.064, 1365627862758.001], [1_365_627_862_757_064, 1_365_627_862_758_001]),
        (["1700000000000001.123", "1700000000000001.124"], [1_700_000_000_000_001_123, 1_700_000_000_000_001_124]),
        (
            [1_700_000_000_000_000_123, 1_700_000_000_000_000_124],
            [1_700_000_000_000_000_123, 1_700_000_000_000_000_124],
        ),
        (["1700000000000000123"], [1_700_000_000_000_000_123]),
        ([5, 5.5, "6"], [5000, 5500, 6000]),
        ([10, None, 12], [10_000, BAD_TIME, 12_000]),
        ([float("nan"), float("inf"), 1.5], [BAD_TIME, BAD_TIME, 1500]),
        ([3, 10**16, 2**80], [3000, BAD_TIME, BAD_TIME]),
        ([None, None], [BAD_TIME, BAD_TIME]),
    ],
    ids=["µs", "float µs", "text µs", "ns", "text ns", "mixed", "gap", "not finite", "absurd", "nothing"],
)
def test_times_come_out_in_ns(given: list[Any], ns: list[int]) -> None:
    assert Clock().times(given).tolist() == ns


def test_the_unit_is_settled_by_the_first_time() -> None:
    clock = Clock()
    clock.times([None])
    clock.times([1_700_000_000_000_000_000])
    starts, ends = clock.spans([1_700_000_000_000_000_500], [30])
    assert (ends - starts).tolist() == [30]


@pytest.mark.parametrize("length", [-1, None, "x", float("nan"), float("inf"), 10**17])
def test_a_span_needs_a_length(length: Any) -> None:
    starts, _ = Clock().spans([10, 20], [length, 5])
    assert starts.tolist() == [BAD_TIME, 20_000]


def test_float_times_since_the_epoch_end_where_the_next_begins() -> None:
    """A float holds quarters of a µs there; the end must be rounded to them as the start of the next kernel is."""
    first, length, second = 1712195495519689.0, 6.8, 1712195495519695.75
    starts, ends = Clock().spans([first, second], [length, 1.0])
    assert ends[0] == starts[1]


def test_small_float_times_keep_their_ns() -> None:
    starts, ends = Clock().spans([1365627862757.064], [2.081])
    assert (ends - starts).tolist() == [2081]
