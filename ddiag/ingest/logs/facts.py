"""Numbers with units, as tools print them."""

from __future__ import annotations

import re

from ddiag.model.incident import NodeFact

_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_SIZE = re.compile(r"([\d.]+)\s*([kmgtp]?)i?b?", re.IGNORECASE)


def number(text: str) -> float | None:
    """The first number in *text*; None for ``N/A``, ``[Not Supported]``, ``ERR!``."""
    match = _NUMBER.search(text)
    if match is None:
        return None
    try:
        return float(match[0].replace(",", ""))
    except ValueError:
        return None


def size_bytes(text: str) -> float | None:
    """``64M``, ``1.5Ti``, ``16384 kB`` in bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return float(match[1]) * _SIZES[match[2].lower()]
    except ValueError:
        return None


def fact(key: str, text: str, device: str | None = None, value: float | None = None) -> NodeFact:
    """A fact whose number is *value*, or the first number in its text."""
    return NodeFact(key, text.strip(), number(text) if value is None else value, device=device)
