"""The ring: one memory-mapped file per process, written by the recorder and read by anybody at any time.

A header page, then ``capacity`` records of 128 bytes. Record *i* (counted from 0 over the whole run) lies in slot
``i % capacity``. The file is shared memory of the page cache, so it survives SIGKILL, abort and a held GIL; a reader
needs no help from the writer. All integers are little-endian; times are ``time.monotonic_ns``-style ns on the header's
clock pair.

Order of writing, which makes every instant readable: the slot's index word becomes 0, the rest of the record is filled,
the index word becomes ``i + 1``; a completion writes ``end_ns``, then ``state``. A reader trusts a slot only when its
index word fits the slot, and (for a ring still being written) is unchanged after the copy: :func:`unpack_records`.

A process may have two rings of this format: ``.ring``, written under the GIL, and ``.native.ring``, written by the
native kernel without it. They share no counter; the native one takes step and phase from the LIVE words of the first.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddiag.errors import InputError
from ddiag.schema.phases import FORMAT_VERSION, State

MAGIC = b"DDIAGRNG"
HEADER_BYTES = 4096
RECORD_BYTES = 128

HEADER = struct.Struct("<8sIIQQqqqqqqqqq")
"""magic, format_version, record_bytes, capacity, (unused), pid, rank, world_size, local_rank, attempt, start_ticks,
wall_ns, mono_ns, main_tid. ``wall_ns`` and ``mono_ns`` were read together; ``start_ticks`` is field 22 of
/proc/PID/stat."""

HEAD_OFFSET = 512
"""u64: records begun so far. A hint: with several threads it may lag by a few; the index words are the truth."""
HEAD = HEAD_OFFSET // 8
""":data:`HEAD_OFFSET` as an index of 8-byte words."""
CLOSED_OFFSET = 520
"""i64: mono_ns at which the recorder closed the ring in good order; 0 while it is open or after a crash."""
LIVE = struct.Struct("<QqqqqqQQQq")
LIVE_OFFSET = 576
"""records dropped, step, phase, phase_since_ns, last progress_ns, last issued seq, errors caught, overhead_ns, names
written, micro step: the state a supervisor watches without reading records. Each is one aligned 8-byte word, written
whole."""

(
    LIVE_DROPPED,
    LIVE_STEP,
    LIVE_PHASE,
    LIVE_PHASE_SINCE,
    LIVE_PROGRESS,
    LIVE_SEQ,
    LIVE_ERRORS,
    LIVE_OVERHEAD,
    LIVE_NAMES,
    LIVE_MICRO_STEP,
) = range(LIVE_OFFSET // 8, LIVE_OFFSET // 8 + 10)
"""The same as indices of 8-byte words from the start of the file."""

COUNTED_CALLS, COUNTED_BYTES, COUNTED_WAIT_NS = range(LIVE_MICRO_STEP + 1, LIVE_MICRO_STEP + 4)
"""Words in which the native kernel adds up, over the whole recording: collectives, the bytes they were given, and how
long the training thread waited for them."""
REPLICAS = 64
FORWARDS = (LIVE_OFFSET + 128) // 8
"""First of REPLICAS words: how often replica *i* of a model (modulo REPLICAS) went forward with gradients, which tells
the native kernel that a pass begins in which each of its buckets is reduced once."""
assert 8 * (FORWARDS + REPLICAS) <= HEADER_BYTES

RECORD = struct.Struct("<QHHIiiqHHiqqqqqqqdII16x")
"""index+1, kind, op, flags, group, label, step, phase, dtype, peer, seq, enqueue_ns, start_ns, end_ns, bytes_in,
bytes_out, thread, value, state, micro_step."""

BODY = struct.Struct("<HHIiiqHHiqqqqqqqdII16x")
"""A record without its index word: what a writer fills between taking and publishing the slot."""
BODY_OFFSET = 8
END_OFFSET = 64
"""Offset of end_ns inside a record: completion is written in place."""
STATE_OFFSET = 104
"""Offset of state inside a record."""
FLAGS_OFFSET = 12
START_OFFSET = 56

assert RECORD.size == RECORD_BYTES
assert BODY.size == RECORD_BYTES - BODY_OFFSET
assert sys.byteorder == "little", "the ring's words are written in the machine's own order, which must be little-endian"


class Record(NamedTuple):
    """One record, as in :data:`RECORD`; ``index`` counts from 0 over the whole run."""

    index: int  # type: ignore[assignment]
    kind: int
    op: int
    flags: int
    group: int
    """Name id of the process group; -1 none."""
    label: int
    """Name id of the label (bucket, unit, module); -1 none."""
    step: int
    phase: int
    dtype: int
    """Name id of the element type as torch prints it, without ``torch.``; 65535 unknown."""
    peer: int
    seq: int
    enqueue_ns: int
    start_ns: int
    end_ns: int
    """0 while it is not over."""
    bytes_in: int
    bytes_out: int
    thread: int
    """Native thread id, as in /proc and ``main_tid``."""
    value: float
    state: int
    micro_step: int


RECORD_FIELDS = Record._fields
"""Names of :data:`RECORD`, in order."""
NO_NAME = -1
NO_DTYPE = 65535


@dataclass(frozen=True)
class RingHeader:
    """What a ring says about its process."""

    format_version: int
    capacity: int
    pid: int
    rank: int
    world_size: int
    local_rank: int
    attempt: int
    start_ticks: int
    wall_ns: int
    mono_ns: int
    main_tid: int

    def wall(self, mono_ns: int) -> int:
        """Unix ns of a record's time."""
        return self.wall_ns + (mono_ns - self.mono_ns)


@dataclass(frozen=True)
class Live:
    """The words a supervisor watches: :data:`LIVE`."""

    head: int
    closed_ns: int
    dropped: int
    step: int
    phase: int
    phase_since_ns: int
    progress_ns: int
    last_seq: int
    errors: int
    overhead_ns: int
    names: int
    micro_step: int


def pack_header(header: RingHeader) -> bytes:
    return HEADER.pack(
        *(MAGIC, header.format_version, RECORD_BYTES, header.capacity, 0, header.pid, header.rank, header.world_size),
        *(header.local_rank, header.attempt, header.start_ticks, header.wall_ns, header.mono_ns, header.main_tid),
    )


def unpack_header(data: bytes | memoryview, *, source: str = "ring") -> RingHeader:
    """The header at the start of *data*; raises :class:`InputError` when it is none or of a newer format."""
    if len(data) < HEADER_BYTES:
        raise InputError(f"{source}: {len(data)} bytes, too short for a ring's header of {HEADER_BYTES}")
    magic, version, record_bytes, capacity, _, pid, rank, world, local, attempt, ticks, wall, mono, tid = (
        HEADER.unpack_from(data)
    )
    if magic != MAGIC:
        raise InputError(f"{source}: not a ring of ddiag (it starts with {bytes(magic)!r})")
    if version > FORMAT_VERSION:
        raise InputError(f"{source}: format {version}, this ddiag reads up to {FORMAT_VERSION}: use a newer ddiag")
    if record_bytes != RECORD_BYTES or capacity < 1:
        raise InputError(f"{source}: damaged header (record of {record_bytes} bytes, capacity {capacity})")
    return RingHeader(version, capacity, pid, rank, world, local, attempt, ticks, wall, mono, tid)


def unpack_live(data: bytes | memoryview) -> Live:
    head, closed = struct.unpack_from("<Qq", data, HEAD_OFFSET)
    return Live(head, closed, *LIVE.unpack_from(data, LIVE_OFFSET))


def ring_bytes(capacity: int) -> int:
    """Size of the file."""
    return HEADER_BYTES + capacity * RECORD_BYTES


def pack_body(**fields: Any) -> bytes:
    """The body of a record; fields not given are 0, ids that are not given are 'none'. For tests and slow paths."""
    healthy = {"group": NO_NAME, "label": NO_NAME, "dtype": NO_DTYPE, "peer": -1, "seq": -1, "value": 0.0}
    unknown = set(fields) - set(RECORD_FIELDS[1:])
    if unknown:
        raise TypeError(f"no such field of a record: {sorted(unknown)}")
    return BODY.pack(*((healthy | fields).get(name, 0) for name in RECORD_FIELDS[1:]))


def unpack_records(data: bytes | memoryview, capacity: int, *, again: bytes | memoryview | None = None) -> list[Record]:
    """The trustworthy records of a ring, oldest first.

    *data* is the file from its start (it may end early). *again* is a second copy taken later from a ring that is
    still written: a slot whose index word changed in between may be mixed, and is left out.
    """
    found = list(_slots(data, capacity))
    if again is not None:
        stable = {fields[0] for fields in _slots(again, capacity)}
        found = [fields for fields in found if fields[0] in stable]
    return sorted(Record._make((fields[0] - 1, *fields[1:])) for fields in found)


def _slots(data: bytes | memoryview, capacity: int) -> Iterator[tuple[Any, ...]]:
    """Unpacked slots whose index word fits their place."""
    whole = min(capacity, max(0, len(data) - HEADER_BYTES) // RECORD_BYTES)
    records = memoryview(data)[HEADER_BYTES : HEADER_BYTES + whole * RECORD_BYTES]
    for slot, fields in enumerate(RECORD.iter_unpack(records)):
        if fields[0] and (fields[0] - 1) % capacity == slot and State.OPEN <= fields[18] <= State.FAILED:
            yield fields
