"""How numbers are written, and tables cut, sorted and filtered."""

from __future__ import annotations

import polars as pl
import pytest

from ddiag.plots.numbers import amount, decimals_for, percent, short, size, span, thousands
from ddiag.plots.table import Column, Value, make_table

MS = Column("ms", "Time", "ms")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346"),
        (0.9996, "1.00"), (99.96, "100"), (-1.234, "-1.23"),
    ],
)  # fmt: skip
def test_three_significant_digits(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (26214400, "25.0 MiB"),
        (85e9, "79.2 GiB"),
        (1048575, "1.00 MiB"),
    ],
)
def test_binary_sizes(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (0.85, "850 µs"), (12.34, "12.3 ms"), (9999, "9,999 ms"), (12_340, "12.3 s"), (125_000, "2 min 5 s")],
)
def test_durations_in_the_unit_that_suits(ms: float, text: str) -> None:
    assert span(ms) == text


def test_a_share_that_was_measured_is_never_shown_as_nothing() -> None:
    assert percent(0.0) == "0.0 %"
    assert percent(0.0004) == "< 0.1 %"
    assert percent(0.0994) == "9.9 %"
    assert percent(0.5) == "50 %"


def test_minus_nothing_is_nothing() -> None:
    assert thousands(-0.0001, 2) == "0.00"


def test_means_of_counts() -> None:
    assert amount(40.0) == "40"
    assert amount(40.5) == "40.5"


def test_a_column_has_the_decimals_of_its_largest_value() -> None:
    assert decimals_for([1, 2, 300]) == 0
    assert decimals_for([0.1, 15.8]) == 2
    assert decimals_for([0.1, 1234.5]) == 1
    assert decimals_for([]) == 0
    assert decimals_for([float("inf"), 2.0]) == 0


def test_values_are_written_alike_and_sort_by_their_number() -> None:
    table = make_table("t", "T", (MS,), [{"ms": 15.8}, {"ms": 0.001}, {"ms": None}, {"ms": float("nan")}, {"ms": -2.5}])
    assert [row.cells[0].text for row in table.rows] == ["15.80", "< 0.01", "–", "–", "−2.50"]
    assert [row.cells[0].sort for row in table.rows] == ["15.8", "0.001", "", "", "-2.5"]


def test_unknown_and_measured_zero_look_different() -> None:
    table = make_table("t", "T", (MS,), [{"ms": 0.0}, {"ms": None}])
    assert [row.cells[0].text for row in table.rows] == ["0", "–"]


def test_a_cut_table_knows_of_how_many() -> None:
    table = make_table("t", "T", (MS,), pl.DataFrame({"ms": range(500)}), limit=10, cut_by="longest")
    assert (len(table.rows), table.total, table.truncated) == (10, 500, True)
    assert not make_table("t", "T", (MS,), [{"ms": 1.0}]).truncated


def test_a_column_nobody_measured_is_left_out() -> None:
    table = make_table("t", "T", (MS, Column("bytes", "Size", kind="bytes")), [{"ms": 1.5, "bytes": None}])
    assert [column.key for column in table.columns] == ["ms"]


def test_rows_say_which_rank_and_group_they_speak_of() -> None:
    rows = make_table("t", "T", (MS,), [{"ms": 1.0, "rank": 3, "group": "dp_0"}, {"ms": 1.0}]).rows
    assert (rows[0].rank, rows[0].group) == (3, "dp_0")
    assert (rows[1].rank, rows[1].group) == (None, None)


def test_kinds_of_column() -> None:
    columns = (
        Column("share", "Share", "%", "share"),
        Column("bytes", "Size", kind="bytes"),
        Column("n", "Calls", kind="count"),
        Column("rank", "Rank", kind="rank"),
        Column("pinned", "Pinned", kind="text"),
    )
    record: dict[str, Value] = {"share": 0.255, "bytes": 2048, "n": 1200.0, "rank": 1024, "pinned": True}
    row = make_table("t", "T", columns, [record]).rows[0]
    assert [cell.text for cell in row.cells] == ["25.50", "2.00 KiB", "1,200", "1024", "yes"]
