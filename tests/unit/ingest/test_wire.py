"""The protocol buffer wire format, against an encoder of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddiag.ingest.wire import FIXED32, FIXED64, LENGTH, VARINT, WireError, fields, top_level
from tests.unit.ingest.tf_profile import block, number, varint

Told = tuple[int, int, "int | bytes"]


def encode(field: int, wire: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return block(field, value)
    if wire == VARINT:
        return number(field, value)
    return varint(field << 3 | wire) + value.to_bytes(8 if wire == FIXED64 else 4, "little")


FIELD = st.integers(1, 2**20)
TOLD = st.one_of(
    st.tuples(FIELD, st.just(VARINT), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(FIELD, st.just(LENGTH), st.binary(max_size=200)),
    st.tuples(FIELD, st.just(FIXED64), st.integers(0, 2**63)),
    st.tuples(FIELD, st.just(FIXED32), st.integers(0, 2**32 - 1)),
)
messages = st.lists(st.lists(TOLD, max_size=6), max_size=4)
few = settings(max_examples=40, deadline=None)


@few
@given(messages)
def test_what_was_encoded_is_decoded(said: list[list[Told]]) -> None:
    encoded = [b"".join(encode(*one) for one in message) for message in said]
    data = b"".join(encoded)
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    found = fields(np.frombuffer(data, dtype=np.uint8), ends[:-1], ends[1:])
    for index, message in enumerate(said):
        rows = np.flatnonzero(found.message == index)
        assert found.number[rows].tolist() == [field for field, _, _ in message]
        assert found.wire[rows].tolist() == [wire for _, wire, _ in message]
        for row, (_, wire, value) in zip(rows.tolist(), message, strict=True):
            if isinstance(value, bytes):
                assert data[found.at[row] : found.at[row] + found.value[row]] == value
            elif wire == VARINT:
                assert found.value[row] == value


@few
@given(messages)
def test_one_message_alone_reads_the_same(said: list[list[Told]]) -> None:
    for message in said:
        data = b"".join(encode(*one) for one in message)
        seen = [(field, wire) for field, wire, _, _ in top_level(memoryview(data), 0, len(data))]
        assert seen == [(field, wire) for field, wire, _ in message if wire in (VARINT, LENGTH)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x08", "cut off inside a number"),
        (b"\x08\xff", "cut off inside a number"),
        (b"\x12\x05abc", "cut off inside a field"),
        (b"\x08" + b"\xff" * 11, "does not end"),
        (b"\x0f\x00", "does not exist"),
        (b"\x09abc", "cut off"),
    ],
)
def test_what_is_no_message_is_said(data: bytes, why: str) -> None:
    bounds = np.array([0]), np.array([len(data)])
    with pytest.raises(WireError, match=why):
        fields(np.frombuffer(data, dtype=np.uint8), *bounds)
    with pytest.raises(WireError, match=why):
        list(top_level(memoryview(data), 0, len(data)))
