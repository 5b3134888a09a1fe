"""How numbers are written: three significant digits, thousands separators, binary sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def thousands(value: float, decimals: int) -> str:
    """``1234.5, 1`` -> ``1,234.5``; never ``-0``."""
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if text.strip("-0.,") == "" else text


def short(value: float) -> str:
    """Three significant digits: ``0.0123``, ``1.23``, ``12.3``, ``123``, ``12,345``."""
    return thousands(value, _decimals(abs(value)))


def amount(value: float) -> str:
    """A count that may be a mean: whole ones without decimals."""
    return thousands(value, 0) if value == int(value) else short(value)


def decimals_for(values: Sequence[float]) -> int:
    """Decimals for a column of these magnitudes: four significant digits of its largest, none if all are whole."""
    finite = [value for value in values if math.isfinite(value)]
    if all(value == int(value) for value in finite):
        return 0
    return max(1, min(_decimals(max(finite)) + 1, 4))


def size(amount: float) -> str:
    """``26214400`` -> ``25.0 MiB``."""
    value, unit = float(amount), 0
    while abs(value) >= 1023.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return (
        f"{value:,.0f} B" if unit == 0 else f"{short(value) if value < 100 else format(value, ',.0f')} {_SIZES[unit]}"
    )


def span(ms: float) -> str:
    """A duration in the unit that suits it: ``850 µs``, ``12.3 ms``, ``4.56 s``, ``2 min 5 s``."""
    if ms == 0:
        return "0 ms"
    if abs(ms) < 1:
        return f"{short(ms * 1000)} µs"
    if abs(ms) < 10_000:
        return f"{short(ms)} ms"
    seconds = ms / 1000
    if abs(seconds) < 120:
        return f"{short(seconds)} s"
    return f"{int(seconds // 60):,} min {int(seconds % 60)} s"


def percent(share: float) -> str:
    """``0.1234`` -> ``12 %``; below 10 % with one decimal; a positive share is never shown as 0."""
    value = share * 100
    if value != 0 and abs(value) < 0.1:
        return "< 0.1 %"
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def _decimals(magnitude: float) -> int:
    if magnitude == 0 or magnitude >= 99.95:
        return 0
    if magnitude >= 9.995:
        return 1
    if magnitude >= 0.9995:
        return 2
    if magnitude >= 0.09995:
        return 3
    return 4
