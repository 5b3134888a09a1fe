"""Reads step summaries (:mod:`ddiag.schema.steps`) as one table: a run of a million steps is 300 MB of records."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddiag.errors import InputError
from ddiag.schema import steps as layout
from ddiag.schema.phases import FORMAT_VERSION

_TAIL = (
    ("comm_count", "<i8"), ("comm_bytes", "<i8"), ("comm_wait_ns", "<i8"), ("rss_bytes", "<i8"),
    ("rss_peak_bytes", "<i8"), ("device_allocated_bytes", "<i8"), ("device_reserved_bytes", "<i8"),
    ("device_peak_allocated_bytes", "<i8"), ("device_peak_reserved_bytes", "<i8"), ("alloc_retries", "<i8"),
    ("gc_ns", "<i8"), ("gc_count", "<i8"), ("loss_scale", "<f8"), ("grad_norm", "<f8"), ("loader_queue", "<i4"),
    ("loader_workers", "<i4"), ("overhead_ns", "<i8"), ("ring_head", "<u8"),
)  # fmt: skip
RECORD = np.dtype(
    [
        ("step", "<i8"), ("wall_end_ns", "<i8"), ("start_ns", "<i8"), ("end_ns", "<i8"), ("micro_steps", "<u4"),
        ("flags", "<u4"), ("phase_ns", "<i8", (layout.PHASES,)), *_TAIL,
    ]
)  # fmt: skip

assert RECORD.itemsize == layout.RECORD_BYTES
assert RECORD.names == layout.StepRecord._fields

Summaries = npt.NDArray[np.void]


@dataclass(frozen=True)
class StepFile:
    """What one ``.steps`` file holds."""

    pid: int
    rank: int
    attempt: int
    wall_ns: int
    mono_ns: int
    records: Summaries
    """In the order in which the steps ended; what cannot be is left out."""
    cut_bytes: int
    """Of a last record that was not written whole."""
    damaged: int
    """Records left out."""


def read_steps(data: bytes, *, source: str = "steps") -> StepFile:
    """The summaries in *data*; raises :class:`~ddiag.errors.InputError` when it is none, or of a newer format."""
    if len(data) < layout.HEADER_BYTES or data[:8] != layout.MAGIC:
        raise InputError(f"{source}: not a file of step summaries of ddiag")
    try:
        _, version, record_bytes, pid, rank, attempt, wall_ns, mono_ns, _ = layout.HEADER.unpack_from(data)
    except struct.error as error:
        raise InputError(f"{source}: damaged header ({error})") from error
    if version > FORMAT_VERSION:
        raise InputError(f"{source}: format {version}, this ddiag reads up to {FORMAT_VERSION}: use a newer ddiag")
    if record_bytes != layout.RECORD_BYTES:
        raise InputError(f"{source}: records of {record_bytes} bytes, {layout.RECORD_BYTES} expected")
    count = layout.written(data)
    rest = _cut_bytes(data[layout.HEADER_BYTES + count * layout.RECORD_BYTES :][: layout.RECORD_BYTES])
    records = np.frombuffer(data, dtype=RECORD, count=count, offset=layout.HEADER_BYTES)
    good = (records["end_ns"] > records["start_ns"]) & (records["step"] >= 0)
    return StepFile(pid, rank, attempt, wall_ns, mono_ns, records[good], rest, int(count - np.count_nonzero(good)))


def _cut_bytes(tail: bytes) -> int:
    """Of what stands where the next record would: up to its last byte that is not reserved space."""
    return len(tail.rstrip(b"\0"))
