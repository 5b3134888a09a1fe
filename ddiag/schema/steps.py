"""Per-step summaries (``.steps``): a 64-byte header, then one fixed-size record per finished step, appended whole.

They cover the whole run, while the ring keeps only its newest records. While a process lives, and when it was killed,
zeros follow that it had reserved for more; a last record that was cut short, or has no end yet, is left out as well.
All integers are little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from enum import IntFlag
from typing import NamedTuple

from ddiag.errors import InputError
from ddiag.schema.phases import FORMAT_VERSION

MAGIC = b"DDIAGSTP"
HEADER = struct.Struct("<8sIIqqqqqq")
"""magic, format_version, record_bytes, pid, rank, attempt, wall_ns, mono_ns (read together), 0."""
HEADER_BYTES = 64
PHASES = 16
"""Room for :class:`ddiag.schema.phases.Phase`, with places to spare."""

RECORD = struct.Struct(f"<qqqqII{PHASES}qqqqqqqqqqqqqddiiqQ")
"""The fields of :class:`StepRecord` in order, ``phase_ns`` spread out."""
RECORD_BYTES = RECORD.size
END_OFFSET = 24
"""Of ``end_ns`` in a record. It is written last: a record without it is none, and neither is what follows."""

UNKNOWN = -1
"""Of a byte count, a queue length or a number of workers that could not be read."""


_UNKNOWN = (
    *("rss_bytes", "rss_peak_bytes", "device_allocated_bytes", "device_reserved_bytes", "device_peak_allocated_bytes"),
    *("device_peak_reserved_bytes", "alloc_retries", "loader_queue", "loader_workers"),
)


class StepFlag(IntFlag):
    OPTIMIZER_SKIPPED = 1
    """GradScaler (or an engine) left the optimizer step out because of inf or nan."""
    EVALUATION = 2
    CHECKPOINT = 4
    LOGGING = 8
    COMPILED = 16
    PROFILED = 32
    """torch.profiler ran in it: its times are not typical."""
    ENGINE_BOUNDARY = 64
    """The step ended where an engine (DeepSpeed) or the user said so, not at an optimizer's step."""
    CLIP_BEFORE_UNSCALE = 128
    SEVERAL_OPTIMIZERS = 256


class StepRecord(NamedTuple):
    """What one rank did between the end of the optimizer step before and the end of its own."""

    step: int
    """0, 1, … in the order in which they ended on this rank."""
    wall_end_ns: int
    """Unix ns at the end, read then: with ``end_ns`` it shows how the clocks drift."""
    start_ns: int
    end_ns: int
    micro_steps: int
    """Backward passes (1 without gradient accumulation)."""
    flags: int
    phase_ns: tuple[int, ...]
    """By :class:`Phase`: host time of the training thread in this phase and in none nested in it; together they are
    the step's duration (what no phase covers is OTHER)."""
    comm_count: int
    comm_bytes: int
    comm_wait_ns: int
    """The training thread waited for communication; part of the phases it happened in."""
    rss_bytes: int
    """Resident set at the end of the step. Memory is read in as many steps as cost little (all that are not short); in
    the others it is unknown."""
    rss_peak_bytes: int
    """Highest resident set seen in the step: the highest of the samples at the start of backward, before the optimizer
    and at the end, or the process's own peak when that has risen since the step read before."""
    device_allocated_bytes: int
    """Highest amount the caching allocator had handed out, of the same samples; the current device's."""
    device_reserved_bytes: int
    device_peak_allocated_bytes: int
    """The allocator's own peak since the user last reset it."""
    device_peak_reserved_bytes: int
    alloc_retries: int
    """In this step; -1 unknown."""
    gc_ns: int
    gc_count: int
    loss_scale: float
    """NaN unknown; on a device it is that of a step or two before, since reading it must not wait."""
    grad_norm: float
    """As the user computed it; NaN unknown, and late like ``loss_scale``."""
    loader_queue: int
    """Batches ready when the step asked for its last one; -1 unknown."""
    loader_workers: int
    """Worker processes of that loader; -1 unknown, 0 loads in the training process."""
    overhead_ns: int
    """The recorder's own time in this step (estimated)."""
    ring_head: int
    """Records begun by the end of the step."""


def pack_header(*, pid: int, rank: int, attempt: int, wall_ns: int, mono_ns: int) -> bytes:
    return HEADER.pack(MAGIC, FORMAT_VERSION, RECORD_BYTES, pid, rank, attempt, wall_ns, mono_ns, 0)


def flat(record: StepRecord) -> tuple[float, ...]:
    """The values of :data:`RECORD`."""
    phases = record.phase_ns
    return (*record[:6], *phases, *(0,) * (PHASES - len(phases)), *record[7:])


def pack(record: StepRecord) -> bytes:
    return RECORD.pack(*flat(record))


def empty(step: int = 0) -> StepRecord:
    """A step of which nothing is known."""
    return StepRecord(
        **dict.fromkeys(StepRecord._fields, 0) | dict.fromkeys(_UNKNOWN, UNKNOWN),  # type: ignore[arg-type]
    )._replace(step=step, phase_ns=(0,) * PHASES, loss_scale=math.nan, grad_norm=math.nan)


def unpack(data: bytes, *, source: str = "steps") -> list[StepRecord]:
    """Every whole record of a ``.steps`` file, in order."""
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise InputError(f"{source}: not a file of step summaries of ddiag")
    _, version, record_bytes, *_ = HEADER.unpack_from(data)
    if version > FORMAT_VERSION:
        raise InputError(f"{source}: format {version}, this ddiag reads up to {FORMAT_VERSION}: use a newer ddiag")
    if record_bytes != RECORD_BYTES:
        raise InputError(f"{source}: records of {record_bytes} bytes, {RECORD_BYTES} expected")
    return list(_records(memoryview(data)[HEADER_BYTES : HEADER_BYTES + written(data) * RECORD_BYTES]))


def written(data: bytes) -> int:
    """How many records of a ``.steps`` file are there, before the first without an end.

    What follows that one is reserved for more; or it was written while the file was being read, after its place had
    been passed.
    """
    count = max(0, (len(data) - HEADER_BYTES) // RECORD_BYTES)
    words = memoryview(data)[HEADER_BYTES : HEADER_BYTES + count * RECORD_BYTES].cast("q")
    ends = words[END_OFFSET // 8 :: RECORD_BYTES // 8].tolist()
    return ends.index(0) if 0 in ends else count


def _records(data: memoryview) -> Iterable[StepRecord]:
    for fields in RECORD.iter_unpack(data):
        yield StepRecord._make((*fields[:6], fields[6 : 6 + PHASES], *fields[6 + PHASES :]))
