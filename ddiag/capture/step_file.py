"""The file of step summaries, mapped: at the end of a step nothing is asked of the kernel.

A system call there costs ten times what it costs in a loop, and on a busy disk a write may wait for others' writing (of
a checkpoint, say). The file grows by pieces that are reserved first: on a full disk a page that is not there would kill
the job. What is reserved and not yet written is zeros, which readers leave out, and is cut off in the end.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

from ddiag.capture.append_file import AppendFile
from ddiag.capture.ring import reserve
from ddiag.schema import steps as layout
from ddiag.schema.placement import file_system, is_remote

PIECE = 1 << 16
"""About 200 steps."""
_PACK, _PACK_END = layout.RECORD.pack_into, struct.Struct("<q").pack_into
_END, _BYTES = layout.END_OFFSET, layout.RECORD_BYTES


class StepWriter:
    """Appends summaries, each whole or not at all; what finds no place is dropped and counted."""

    def __init__(self, path: Path, header: bytes, dropped: Callable[[], None]) -> None:
        self._dropped = dropped
        # A mapped page of a network file system may block whoever writes it, see ddiag.schema.placement.
        self._appended = AppendFile(path, dropped) if is_remote(file_system(path)) else None
        if self._appended is not None:
            self._appended.write(header)
            return
        self._path = path
        self._next = len(header)
        self._size = self._base = 0
        self._map: mmap.mmap | None = None
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self._identity = _identity(file)
            os.pwrite(file, header, 0)
            self._take_piece(file)
        finally:
            os.close(file)

    def append(self, end_ns: int, values: tuple[float, ...]) -> None:
        """*values* are a :class:`~ddiag.schema.steps.StepRecord`, flat, with 0 instead of its end, *end_ns*."""
        if self._appended is not None:
            packed = bytearray(layout.RECORD.pack(*values))
            _PACK_END(packed, _END, end_ns)
            self._appended.write(packed)
            return
        after = self._next + _BYTES
        if after > self._size:
            self._grow()
        memory, at = self._map, self._next - self._base
        if memory is None or after > self._size:
            self._dropped()
            return
        # The end comes last: until it is there, the record is none.
        _PACK(memory, at, *values)
        _PACK_END(memory, at + _END, end_ns)
        self._next = after

    def _grow(self) -> None:
        """Take the next piece, if the disk has room and the file is still this one."""
        try:
            self._with_file(self._take_piece)
        except OSError:
            return

    def _take_piece(self, file: int) -> None:
        size = self._size + PIECE
        reserve(file, size, start=self._size)
        base = self._next // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self._map = mmap.mmap(file, size - base, flags=flags, offset=base)
        self._base, self._size = base, size

    def _with_file(self, use: Callable[[int], None]) -> None:
        if self._map is None:
            return
        file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _identity(file) == self._identity:
                use(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """Cut off what was reserved in vain; later summaries are dropped."""
        if self._appended is not None:
            self._appended.close()
            return
        try:
            self._with_file(lambda file: os.ftruncate(file, self._next))
        except OSError:
            return  # it is gone, or may no longer be written
        finally:
            self.detach()

    def detach(self) -> None:
        """Let go of the file as it is: in a forked child it is its parent's."""
        if self._appended is not None:
            self._appended.close()
            return
        self._map, self._size = None, 0


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino
