"""How checks word amounts."""

from __future__ import annotations

from ddiag.model.preflight import UNLIMITED

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def amount(value: float) -> str:
    """Bytes as people write them: '64 MiB', '23.5 GiB', 'unlimited'."""
    if value == UNLIMITED:
        return "unlimited"
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} bytes"


def count(value: float) -> str:
    return "unlimited" if value == UNLIMITED else f"{value:,.0f}"


def listed(names: list[str], most: int = 6) -> str:
    """'gpu0, gpu3'; of many the first ones and how many there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"
