"""Pickles as torch writes them from C++: protocol 2, every text written once and then fetched, shared values shared.

Values given as :class:`Slot` stand for integers that differ from one copy of a value to the next, so that a thousand
entries are made from one that is pickled once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_GAP = b"\xff\xfe\xfd"
START, END = b"\x80\x02", b"."


@dataclass(frozen=True)
class Slot:
    """The *place*-th of the integers that :meth:`Template.fill` writes; None is written as None."""

    place: int


class TorchPickler:
    """Pickles values one after the other with one memo, as parts of one pickle."""

    def __init__(self) -> None:
        self._memo: dict[Any, int] = {}
        self._shared: list[Any] = []
        """Keeps shared values alive, so that their ids stay theirs."""

    def value(self, value: Any) -> bytes:
        """The opcodes that push *value*."""
        if isinstance(value, Shared):
            return self._remembered(("shared", id(value)), lambda: self.value(value.value), value)
        if isinstance(value, str):
            text = value.encode()
            return self._remembered(value, lambda: b"X" + struct.pack("<I", len(text)) + text, None)
        if isinstance(value, Slot):
            return _GAP + bytes([value.place])
        if isinstance(value, Mapping):
            items = b"".join(self.value(key) + self.value(one) for key, one in value.items())
            return b"}(" + items + b"u" if items else b"}"
        if isinstance(value, list):
            return b"](" + b"".join(map(self.value, value)) + b"e" if value else b"]"
        if isinstance(value, tuple) and len(value) == 2:
            return self.value(value[0]) + self.value(value[1]) + b"\x86"
        return number(value)

    def template(self, value: Any) -> Template:
        """*value* with its slots still open; its texts must have been pickled before, or fill once."""
        first, *rest = self.value(value).split(_GAP)
        return Template(first, tuple((part[0], part[1:]) for part in rest))

    def _remembered(self, key: Any, opcodes: Any, keep: Any) -> bytes:
        place = self._memo.get(key)
        if place is not None:
            return b"h" + bytes([place]) if place < 256 else b"j" + struct.pack("<I", place)
        written: bytes = opcodes()
        place = self._memo[key] = len(self._memo)
        self._shared.append(keep)
        return written + (b"q" + bytes([place]) if place < 256 else b"r" + struct.pack("<I", place))


@dataclass(frozen=True)
class Shared:
    """A value that many others hold: written once."""

    value: Any

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Template:
    """A pickled value with open slots."""

    first: bytes
    rest: tuple[tuple[int, bytes], ...]

    def fill(self, values: Sequence[bytes]) -> bytes:
        """The value with already pickled *values* (see :func:`number`) in its slots."""
        parts = [self.first]
        for place, text in self.rest:
            parts.append(values[place])
            parts.append(text)
        return b"".join(parts)


def number(value: float | None) -> bytes:
    """The opcodes that push a number, a truth value or None."""
    if value is None:
        return b"N"
    if type(value) is bool:
        return b"\x88" if value else b"\x89"
    if not isinstance(value, int):
        return b"G" + struct.pack(">d", value)
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
