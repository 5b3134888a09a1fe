"""Protocol buffer wire format without generated code: many messages at once, field by field, in numpy.

A profile holds millions of small messages of the same kind; decoding the k-th field of all of them together costs some
nanoseconds per field. Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddiag.ingest.values import IntColumn

Bytes = npt.NDArray[np.uint8]
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """The bytes are no protocol buffer message, or not all of one."""


@dataclass(frozen=True)
class Fields:
    """Fields decoded from many messages. For length-delimited fields ``value`` is the length, ``at`` its first byte."""

    message: IntColumn
    """Index of the message each field belongs to."""
    number: IntColumn
    wire: IntColumn
    value: IntColumn
    at: IntColumn

    def only(self, *numbers: int) -> Fields:
        """The fields with one of these numbers."""
        rows = np.flatnonzero(np.isin(self.number, numbers))
        return Fields(self.message[rows], self.number[rows], self.wire[rows], self.value[rows], self.at[rows])

    def integers(self, number: int, count: int, default: int = 0) -> IntColumn:
        """The value of field *number* of each of *count* messages."""
        found = self.only(number)
        out = np.full(count, default, dtype=np.int64)
        out[found.message] = found.value
        return out


def top_level(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, value or length, place of content) of the fields of one message."""
    at = start
    while at < end:
        key, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at, end)
            yield number, wire, value, at
        elif wire == LENGTH:
            short = at < end and data[at] < 0x80
            value, at = (data[at], at + 1) if short else _varint(data, at, end)
            if at + value > end:
                raise WireError("cut off inside a field")
            yield number, wire, value, at
            at += value
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
            if at > end:
                raise WireError("cut off inside a number")
        else:
            raise WireError(f"wire type {wire} does not exist")


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 7 * _MAX_VARINT_BYTES:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError("cut off inside a number" if at >= end else "a number that does not end")


def fields(data: Bytes, start: IntColumn, end: IntColumn) -> Fields:
    """Every field of the messages ``data[start[k]:end[k]]``; fields of one message stay in order."""
    active, at = np.flatnonzero(start < end), start.astype(np.int64).copy()
    parts: list[tuple[IntColumn, ...]] = []
    while active.size:
        key, place = _varints(data, at[active], end[active])
        number, wire = key >> 3, key & 7
        value = np.zeros(active.size, dtype=np.int64)
        numeric = (wire == VARINT) | (wire == LENGTH)
        value[numeric], place[numeric] = _varints(data, place[numeric], end[active[numeric]])
        if not np.isin(wire, (VARINT, FIXED64, LENGTH, FIXED32)).all():
            raise WireError("a wire type that does not exist")
        width = np.select([wire == LENGTH, wire == FIXED64, wire == FIXED32], [value, 8, 4], 0)
        if (width < 0).any() or (place + width > end[active]).any():
            raise WireError("cut off inside a field")
        parts.append((active, number, wire, value, place))
        at[active] = place + width
        active = active[at[active] < end[active]]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [_NONE] * 5
    return Fields(*columns)


_NONE: IntColumn = np.zeros(0, dtype=np.int64)


def _varints(data: Bytes, at: IntColumn, end: IntColumn) -> tuple[IntColumn, IntColumn]:
    """The numbers that begin at *at*, and the places after them."""
    value = np.zeros(at.size, dtype=np.uint64)
    place = at.copy()
    pending = np.arange(at.size)
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if (place[pending] >= end[pending]).any():
            raise WireError("cut off inside a number")
        byte = data[place[pending]].astype(np.uint64)
        value[pending] |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        place[pending] += 1
        pending = pending[byte >= 0x80]
        if not pending.size:
            return value.astype(np.int64), place
    raise WireError("a number that does not end")
