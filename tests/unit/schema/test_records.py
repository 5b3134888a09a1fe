"""Records of the ring and of the steps read back as they were written, and damage is seen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddiag.errors import InputError
from ddiag.schema import names, ring, steps
from ddiag.schema.phases import FORMAT_VERSION, Kind, State

HEADER = ring.RingHeader(FORMAT_VERSION, 4, 1, 2, 3, 0, 0, 99, 10**18, 5_000, 1)


def _ring(*records: tuple[int, int], header: ring.RingHeader = HEADER) -> bytearray:
    """A ring with (index, state) records."""
    data = bytearray(ring.ring_bytes(header.capacity))
    data[: ring.HEADER.size] = ring.pack_header(header)
    for index, state in records:
        at = ring.HEADER_BYTES + index % header.capacity * ring.RECORD_BYTES
        data[at : at + 8] = (index + 1).to_bytes(8, "little")
        data[at + 8 : at + ring.RECORD_BYTES] = ring.pack_body(kind=Kind.PHASE, state=state, start_ns=index, value=0.5)
    return data


def test_a_header_reads_back_and_maps_times_to_the_wall() -> None:
    header = ring.unpack_header(bytes(_ring()))
    assert header == HEADER
    assert header.wall(5_007) == 10**18 + 7


def test_records_come_oldest_first_after_the_ring_has_gone_round() -> None:
    found = ring.unpack_records(_ring(*((i, State.DONE) for i in range(2, 6))), 4)
    assert [record.index for record in found] == [2, 3, 4, 5]
    assert found[0].value == 0.5
    assert found[0].group == ring.NO_NAME


def test_a_slot_being_written_is_left_out() -> None:
    data = _ring((0, State.DONE), (1, State.OPEN))
    data[ring.HEADER_BYTES : ring.HEADER_BYTES + 8] = bytes(8)
    assert [record.index for record in ring.unpack_records(data, 4)] == [1]


def test_a_slot_that_changed_between_two_copies_is_left_out() -> None:
    before, after = _ring((0, State.DONE), (1, State.DONE)), _ring((4, State.OPEN), (1, State.DONE))
    assert [record.index for record in ring.unpack_records(before, 4, again=after)] == [1]


def test_an_index_in_the_wrong_slot_is_left_out() -> None:
    data = _ring((0, State.DONE))
    data[ring.HEADER_BYTES : ring.HEADER_BYTES + 8] = (3).to_bytes(8, "little")
    assert ring.unpack_records(data, 4) == []


def test_a_truncated_ring_gives_its_whole_records() -> None:
    data = _ring((0, State.DONE), (1, State.DONE))[: ring.HEADER_BYTES + ring.RECORD_BYTES + 50]
    assert [record.index for record in ring.unpack_records(data, 4)] == [0]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"short", "too short"),
        (bytes(ring.HEADER_BYTES), "not a ring"),
        (bytes(_ring(header=replace(HEADER, format_version=FORMAT_VERSION + 1))), "newer"),
        (bytes(_ring(header=replace(HEADER, capacity=0)))[:1] + bytes(5000), "not a ring"),
    ],
)
def test_what_is_no_ring_says_so(data: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why):
        ring.unpack_header(data)


def test_steps_read_back_and_a_torn_last_one_is_left_out() -> None:
    first = steps.empty(0)._replace(end_ns=5, phase_ns=(1, 2, 3), grad_norm=0.25, loader_queue=3)
    second = steps.empty(1)._replace(end_ns=9, loss_scale=65536.0, overhead_ns=77)
    data = steps.pack_header(pid=1, rank=0, attempt=0, wall_ns=1, mono_ns=1) + steps.pack(first) + steps.pack(second)
    found = steps.unpack(data)
    assert found[0]._replace(loss_scale=0.0) == first._replace(loss_scale=0.0, phase_ns=(1, 2, 3) + (0,) * 13)
    assert math.isnan(found[0].loss_scale)
    assert (found[1].step, found[1].loss_scale, found[1].overhead_ns) == (1, 65536.0, 77)
    assert len(steps.unpack(data[:-1])) == 1


def test_what_is_no_file_of_steps_says_so() -> None:
    with pytest.raises(InputError, match="not a file of step summaries"):
        steps.unpack(b"x" * 100)


def test_names_read_back_by_id_and_a_torn_last_one_is_left_out() -> None:
    data = names.encode("layers.0") + names.encode("zwei\nZeilen ü") + names.encode("cut")[:-2]
    assert names.decode(data) == ["layers.0", "zwei\nZeilen ü"]


def test_a_long_name_is_cut() -> None:
    assert len(names.decode(names.encode("x" * 10_000))[0]) == names.MAX_CHARACTERS
