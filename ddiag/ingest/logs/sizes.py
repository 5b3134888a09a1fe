"""Amounts of memory as programs print them."""

from __future__ import annotations

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}

AMOUNT = r"([\d,]+(?:\.\d+)?)\s*([KMGTPE]?)i?(?:B|bytes)\b"
"""Groups: number, prefix of the unit."""


def bytes_of(number: str, prefix: str) -> int:
    """Bytes of ``2.00`` and ``G``: these programs print powers of 1024 whatever they call the unit."""
    return round(float(number.replace(",", "")) * _BINARY[prefix.upper()])
