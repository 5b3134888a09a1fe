"""PCI addresses in one spelling: ``0000:3b:00.0``, lower case, domain of four digits, with the function."""

from __future__ import annotations

import re

BUS = r"(?:(?:[0-9A-Fa-f]{4}|[0-9A-Fa-f]{8}):)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
_PARTS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")
_PACKED = re.compile(r"[0-9a-f]{1,12}")


def bus_id(text: str) -> str | None:
    """``00000000:3B:00.0``, ``0000:3b:00``, ``3b:00.0`` and NCCL's packed hex ``3b000`` alike; None for other text."""
    plain = text.strip().lower()
    match = _PARTS.fullmatch(plain)
    if match is not None:
        domain, bus, device, function = match.groups()
        return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}"
    return packed_bus_id(plain)


def packed_bus_id(text: str) -> str | None:
    """NCCL prints an address as one hex number without leading zeros: function in the last digit, then device, bus,
    domain (``b7000`` is ``0000:b7:00.0``)."""
    if _PACKED.fullmatch(text.lower()) is None:
        return None
    value = int(text, 16)
    return f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}.{value & 0xF:x}"
