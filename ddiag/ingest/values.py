"""From lists of what the JSON held to numpy columns: the common case at C speed, the odd case value by value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

Key = TypeVar("Key")
IntColumn = npt.NDArray[np.int64]

NS_MAGNITUDE = 10**17
"""A timestamp above this is in ns: in µs it would lie 3,000 years ahead."""
MAX_US = 9 * 10**15
"""µs above this overflow int64 ns."""
BAD_TIME = np.iinfo(np.int64).min

_LAST_DIGITS = re.compile(r"(-?\d+)\D*$")
_WRAP = 1 << 64


class Codes(dict[Key, int], Generic[Key]):
    """Interned text: ``codes[text]`` numbers texts in order of first sight."""

    def __missing__(self, text: Key) -> int:
        self[text] = code = len(self)
        return code


def to_int(value: object, default: int) -> int:
    """*value* as a signed 64-bit integer; ids beyond it wrap, so they stay distinct."""
    if isinstance(value, str):
        match = _LAST_DIGITS.search(value)
        value = int(match.group(1)[:20]) if match else None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else None
    if not isinstance(value, int):
        return default
    return (value + (_WRAP >> 1)) % _WRAP - (_WRAP >> 1)


def ints(values: Sequence[object], default: int = -1, convert: Callable[[object, int], int] = to_int) -> IntColumn:
    """Integers; null and what is no number become *default*."""
    try:
        column = pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return np.array([convert(value, default) for value in values], dtype=np.int64)
    return column.fill_null(default).to_numpy() if column.null_count() else column.to_numpy()


class Clock:
    """Times of one trace to ns. The unit is µs unless the first time says ns; results do not include the trace's base."""

    def __init__(self) -> None:
        self._ns_per_unit = 0
        self._origin = 0

    def times(self, values: Sequence[object]) -> IntColumn:
        """Timestamps in ns; ``BAD_TIME`` where there is none."""
        if not self._ns_per_unit:
            self._choose_unit(values)
        return self._scale(values, self._origin)

    def durations(self, values: Sequence[object]) -> IntColumn:
        """Lengths in ns; ``BAD_TIME`` where missing or negative."""
        lengths = self._scale(values, 0)
        return np.where(lengths < 0, BAD_TIME, lengths)

    def _choose_unit(self, values: Sequence[object]) -> None:
        first = next((time for time in map(_exact, values) if time is not None), None)
        if first is None:
            return
        self._ns_per_unit = 1 if abs(first) > NS_MAGNITUDE else 1000
        self._origin = int(first)

    def _scale(self, values: Sequence[object], origin: int) -> IntColumn:
        unit = self._ns_per_unit or 1000
        limit = MAX_US * 1000 // unit
        try:
            column = pl.Series(values, dtype=pl.Int64)
        except (TypeError, OverflowError):
            return self._scale_mixed(values, origin, unit)
        if column.null_count():
            column = column.fill_null(BAD_TIME)
        whole = column.to_numpy()
        bad = (whole < -limit) | (whole > limit)
        return np.where(bad, BAD_TIME, np.where(bad, 0, whole) * unit)

    def _scale_mixed(self, values: Sequence[object], origin: int, unit: int) -> IntColumn:
        """Floats keep their precision because the origin is taken off before the unit is changed."""
        limit = MAX_US * 1000 // unit
        try:
            offset = pl.Series(values, dtype=pl.Float64).to_numpy() - origin
        except (TypeError, OverflowError):
            return np.array([_exact_ns(value, unit, limit) for value in values], dtype=np.int64)
        bad = ~(np.abs(offset) <= limit - abs(origin))
        return np.where(bad, BAD_TIME, np.rint(np.where(bad, 0.0, offset) * unit).astype(np.int64) + origin * unit)


def _exact(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(value) if not isinstance(value, float) else Decimal(repr(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < 10**19 else None


def _exact_ns(value: object, unit: int, limit: int) -> int:
    number = _exact(value)
    if number is None or abs(number) > limit:
        return int(BAD_TIME)
    return round(number * unit)
