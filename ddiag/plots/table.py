"""A table ready to be shown: the data behind a chart, or a table of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from ddiag.plots.numbers import decimals_for, size, thousands

Value = float | int | str | bool | None


@dataclass(frozen=True)
class Column:
    """One column: where it comes from, its head, and how its values are written."""

    key: str
    label: str
    unit: str = ""
    kind: str = "number"
    """number, count, share (0-1, shown as %), bytes, rank, text or code."""

    @property
    def numeric(self) -> bool:
        return self.kind not in ("text", "code")


@dataclass(frozen=True)
class Cell:
    text: str
    sort: str
    """What sorting compares: the raw number, or the text."""


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    rank: int | None = None
    """Rank the row speaks of; lets the culprit chips filter it."""
    group: str | None = None


@dataclass(frozen=True)
class DataTable:
    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    total: int
    """How many rows there are in all; more than ``len(rows)`` when the table was cut."""
    cut_by: str = ""
    """By what the shown rows were chosen, e.g. 'longest per step'."""

    @property
    def truncated(self) -> bool:
        return self.total > len(self.rows)


def make_table(
    ident: str,
    caption: str,
    columns: Sequence[Column],
    records: Iterable[dict[str, Value]] | pl.DataFrame,
    *,
    limit: int = 100,
    cut_by: str = "",
) -> DataTable:
    """Format the first *limit* of *records* (dicts or a frame). A column that is null everywhere is left out."""
    every = records.to_dicts() if isinstance(records, pl.DataFrame) else list(records)
    kept = every[:limit]
    shown = tuple(c for c in columns if any(record.get(c.key) is not None for record in kept))
    writers = [_Writer(column, [record.get(column.key) for record in kept]) for column in shown]
    rows = tuple(
        Row(
            tuple(write(record.get(column.key)) for column, write in zip(shown, writers, strict=True)),
            rank=_rank_of(record),
            group=record["group"] if isinstance(record.get("group"), str) else None,  # type: ignore[arg-type]
        )
        for record in kept
    )
    return DataTable(ident, caption, shown, rows, len(every), cut_by)


def _rank_of(record: dict[str, Value]) -> int | None:
    rank = record.get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None


class _Writer:
    """Writes one column's values with as many decimals as the whole column needs."""

    def __init__(self, column: Column, values: Sequence[Value]) -> None:
        self._kind = column.kind
        numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        scale = 100.0 if column.kind == "share" else 1.0
        self._decimals = decimals_for([abs(v) * scale for v in numbers])

    def __call__(self, value: Value) -> Cell:
        if value is None:
            return Cell("–", "")
        if isinstance(value, bool):
            return Cell("yes" if value else "no", "1" if value else "0")
        if isinstance(value, str):
            return Cell(value, value)
        if not math.isfinite(value):
            return Cell("–", "")
        return Cell(self._text(float(value)), repr(value))

    def _text(self, value: float) -> str:
        if self._kind == "bytes":
            return size(value)
        if self._kind in ("rank", "step"):
            return str(int(value))
        if self._kind == "count" and value == int(value):
            return thousands(value, 0)
        text = thousands(value * 100 if self._kind == "share" else value, self._decimals).replace("-", "−")
        # Something measured never looks like nothing.
        return f"< {10**-self._decimals:.{self._decimals}f}" if value > 0 and text.strip("0.") == "" else text
