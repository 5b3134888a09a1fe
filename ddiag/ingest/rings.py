"""Reads rings (:mod:`ddiag.schema.ring`) as arrays: whole, cut short, wrapped, or while somebody writes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddiag.schema.phases import State
from ddiag.schema.ring import (
    HEADER_BYTES,
    RECORD_BYTES,
    Live,
    RingHeader,
    ring_bytes,
    unpack_header,
    unpack_live,
)

RECORD = np.dtype(
    [
        ("index", "<u8"), ("kind", "<u2"), ("op", "<u2"), ("flags", "<u4"), ("group", "<i4"), ("label", "<i4"),
        ("step", "<i8"), ("phase", "<u2"), ("dtype", "<u2"), ("peer", "<i4"), ("seq", "<i8"), ("enqueue_ns", "<i8"),
        ("start_ns", "<i8"), ("end_ns", "<i8"), ("bytes_in", "<i8"), ("bytes_out", "<i8"), ("thread", "<i8"),
        ("value", "<f8"), ("state", "<u4"), ("micro_step", "<u4"), ("rest", "V16"),
    ]
)  # fmt: skip
"""One record, as in ``schema.ring.RECORD``; here ``index`` is the index word (number + 1)."""

assert RECORD.itemsize == RECORD_BYTES

Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class Ring:
    """What one ring holds."""

    header: RingHeader
    live: Live
    records: Records
    """Trustworthy records, oldest first."""
    torn: int
    """Slots that were being written, or whose content makes no sense."""
    missing_bytes: int
    """By how much the file is shorter than its header says."""

    @property
    def closed(self) -> bool:
        """The process ended in good order."""
        return self.live.closed_ns > 0

    @property
    def wrapped(self) -> bool:
        """Older records were overwritten."""
        return bool(self.records.size) and int(self.records["index"][-1]) > self.header.capacity

    @property
    def overwritten(self) -> int:
        """Records that existed once and are gone."""
        return max(0, int(self.records["index"][-1]) - self.header.capacity) if self.records.size else 0


def read_ring(data: bytes, *, again: bytes | None = None, source: str = "ring") -> Ring:
    """The ring in *data*; raises :class:`~ddiag.errors.InputError` when it is none, or of a newer format.

    *again*: the same file read once more, for a ring that may still be written. A slot that changed hands between the
    two readings may hold parts of two records and is left out.
    """
    header = unpack_header(data, source=source)
    slots = _slots(data, header.capacity)
    good = _plausible(slots, header.capacity)
    if again is not None:
        later = _slots(again, header.capacity)
        common = min(slots.size, later.size)
        good[:common] &= slots["index"][:common] == later["index"][:common]
        good[common:] = False
    records = slots[good]
    return Ring(
        header=header,
        live=unpack_live(data),
        records=records[np.argsort(records["index"], kind="stable")],
        torn=_torn(slots, good),
        missing_bytes=max(0, ring_bytes(header.capacity) - len(data)),
    )


def _slots(data: bytes, capacity: int) -> Records:
    whole = min(capacity, max(0, len(data) - HEADER_BYTES) // RECORD_BYTES)
    return np.frombuffer(data, dtype=RECORD, count=whole, offset=HEADER_BYTES) if whole else np.empty(0, RECORD)


def _plausible(slots: Records, capacity: int) -> npt.NDArray[np.bool_]:
    """The index word fits the slot, and the state is one that a writer leaves behind."""
    index = slots["index"].astype(np.int64)
    fits = (index > 0) & ((index - 1) % capacity == np.arange(slots.size))
    return np.asarray(fits & (slots["state"] >= State.OPEN) & (slots["state"] <= State.FAILED))


def _torn(slots: Records, good: npt.NDArray[np.bool_]) -> int:
    """Slots that hold something and are not used."""
    return (
        int(np.count_nonzero(~good & (slots.view(np.uint8).reshape(-1, RECORD_BYTES).any(axis=1)))) if slots.size else 0
    )
