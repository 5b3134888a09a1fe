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
        if column.null_count():
            column = pl.Series([default if value is None else value for value in values], dtype=pl.Int64)
    except (TypeError, OverflowError):
        return np.array([convert(value, default) for value in values], dtype=np.int64)
    return column.to_numpy()


class Clock:
    """Times of one trace in ns, without the trace's base. The unit is µs unless the first time says ns."""

    def __init__(self) -> None:
        self._ns_per_unit = 0
        self._origin = 0

    def times(self, values: Sequence[object]) -> IntColumn:
        """Timestamps in ns; ``BAD_TIME`` where there is none."""
        self._choose_unit(values)
        number = _numbers(values)
        return self._exactly(values) if number is None else self._scaled(number, self._origin)

    def spans(self, starts: Sequence[object], lengths: Sequence[object]) -> tuple[IntColumn, IntColumn]:
        """Starts and ends in ns; the start is ``BAD_TIME`` where a time is missing or a length is negative.

        Where starts are floats the end is rounded as they are: since the epoch, a float holds quarters of a µs, and a
        finer end would overlap with the start of what follows.
        """
        self._choose_unit(starts)
        start, length = _numbers(starts), _numbers(lengths)
        begin = self._exactly(starts) if start is None else self._scaled(start, self._origin)
        lasted = self._exactly(lengths) if length is None else self._scaled(length, 0)
        bad = (begin == BAD_TIME) | (lasted < 0)
        any_bad = bool(bad.any())
        if start is not None and length is not None and start.dtype == np.float64:
            end = self._scaled(start + np.where(bad, 0, length) if any_bad else start + length, self._origin)
        else:
            end = begin + (np.where(bad, 0, lasted) if any_bad else lasted)
        return (np.where(bad, BAD_TIME, begin) if any_bad else begin), end

    @property
    def _limit(self) -> int:
        return MAX_US * 1000 // self._ns_per_unit

    def _choose_unit(self, values: Sequence[object]) -> None:
        if self._ns_per_unit and self._origin:
            return
        first = next((time for time in map(_exact, values) if time is not None), None)
        self._ns_per_unit = 1 if first is not None and abs(first) > NS_MAGNITUDE else 1000
        self._origin = int(first) if first is not None and abs(first) <= self._limit else 0

    def _exactly(self, values: Sequence[object]) -> IntColumn:
        return np.array([_exact_ns(value, self._ns_per_unit, self._limit) for value in values], dtype=np.int64)

    def _scaled(self, number: npt.NDArray[np.int64] | npt.NDArray[np.float64], origin: int) -> IntColumn:
        """Floats keep their precision because the origin is taken off before the unit is changed."""
        if number.dtype == np.int64:
            bad = (number < -self._limit) | (number > self._limit)
            ns = np.where(bad, 0, number).astype(np.int64) if bad.any() else number.astype(np.int64, copy=False)
            ns = ns * self._ns_per_unit
        else:
            offset = number - origin
            bad = ~(np.abs(offset) <= self._limit - abs(origin))
            offset = np.where(bad, 0.0, offset) if bad.any() else offset
            ns = np.rint(offset * self._ns_per_unit).astype(np.int64) + origin * self._ns_per_unit
        return np.where(bad, BAD_TIME, ns) if bad.any() else ns


def _numbers(values: Sequence[object]) -> npt.NDArray[np.int64] | npt.NDArray[np.float64] | None:
    """An array of integers or floats; None when there is text among them or numbers beyond 64 bits."""
    for dtype, missing in ((pl.Int64, BAD_TIME), (pl.Float64, math.nan)):
        try:
            column = pl.Series(values, dtype=dtype)
        except (TypeError, OverflowError):
            continue
        if column.null_count():
            column = pl.Series([missing if value is None else value for value in values], dtype=dtype)
        return column.to_numpy()
    return None


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
