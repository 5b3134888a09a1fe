"""Writes the ring of :mod:`ddiag.schema.ring`: integers into shared memory, no lock, no lasting object.

Several threads may write: the slot number comes from ``itertools.count``, which the GIL makes atomic, and each thread
fills only its own slot.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
from pathlib import Path

from ddiag.schema import ring as layout
from ddiag.schema.phases import State
from ddiag.schema.placement import place
from ddiag.schema.ring import RingHeader

CAPACITY = 32_768
"""4 MiB: what a process's resident set grows by once the ring has gone round."""

_BLOCK = 1 << 20
RECORD_WORDS = layout.RECORD_BYTES // 8
HEADER_WORDS = layout.HEADER_BYTES // 8
END_WORD = layout.END_OFFSET // 8
STATE_WORD = layout.STATE_OFFSET // 8
"""Of a record: its state in the lower half, the micro step in the upper."""
UPPER_HALF = -1 << 32
_START_WORD = layout.START_OFFSET // 8
_STATE_HALF = layout.STATE_OFFSET // 4
_FLAGS_HALF = layout.FLAGS_OFFSET // 4
_HEAD = layout.HEAD
_CLOSED = layout.CLOSED_OFFSET // 8


def reserve(file: int, size: int, *, start: int = 0) -> None:
    """Take the space from *start* to *size* now, filled with zeros.

    On a full disk a later write into the mapping would kill the job with SIGBUS; this raises OSError instead.
    """
    try:
        os.posix_fallocate(file, start, size - start)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        # Not every file system can (ZFS); writing zeros takes the space as well.
        for at in range(start, size, _BLOCK):
            os.pwrite(file, bytes(min(_BLOCK, size - at)), at)


class RingWriter:
    """One process's ring. A *token* is the number of a record; -1 is the token of a record that was not taken."""

    __slots__ = ("_halves", "capacity", "memory", "next", "pack", "words")

    def __init__(self, memory: mmap.mmap, header: RingHeader) -> None:
        self.memory = memory
        """With ``pack`` and ``next``: for who begins records by hand, see :meth:`PhaseClock.enter`."""
        self.capacity = header.capacity
        self.words = memoryview(memory).cast("q")
        """The whole file as 64-bit words; live words by ``layout.LIVE_*``."""
        self._halves = memoryview(memory).cast("I")
        self.pack = layout.BODY.pack_into
        self.next = itertools.count().__next__
        packed = layout.pack_header(header)
        memory[: len(packed)] = packed

    @classmethod
    def create(cls, path: Path, header: RingHeader) -> RingWriter:
        """A new file, or a link to one in memory (see :mod:`ddiag.schema.placement`).

        Raises FileExistsError when there is one.
        """
        size = layout.ring_bytes(header.capacity)
        file = os.open(place(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            reserve(file, size)
            # Every page now, in one go, instead of a page fault in a hot path later.
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            return cls(mmap.mmap(file, size, flags=flags), header)
        finally:
            os.close(file)

    @classmethod
    def scratch(cls, header: RingHeader) -> RingWriter:
        """One that no file holds, to measure with."""
        return cls(mmap.mmap(-1, layout.ring_bytes(header.capacity)), header)

    def begin(
        self,
        kind: int,
        op: int,
        flags: int,
        group: int,
        label: int,
        step: int,
        phase: int,
        dtype: int,
        peer: int,
        seq: int,
        enqueue_ns: int,
        start_ns: int,
        end_ns: int,
        bytes_in: int,
        bytes_out: int,
        thread: int,
        value: float,
        state: int,
        micro_step: int,
        /,
    ) -> int:
        """Take a slot and fill it; its token."""
        index = self.next()
        slot = index % self.capacity
        word = HEADER_WORDS + slot * RECORD_WORDS
        words = self.words
        words[word] = 0
        # fmt: off
        self.pack(
            self.memory, (word << 3) + 8, kind, op, flags, group, label, step, phase, dtype, peer, seq, enqueue_ns,
            start_ns, end_ns, bytes_in, bytes_out, thread, value, state, micro_step,
        )
        # fmt: on
        words[word] = words[_HEAD] = index + 1
        return index

    def complete(self, token: int, end_ns: int, state: int = State.DONE, flags: int = 0) -> bool:
        """Close record *token*; False when the ring has gone round since and its slot is another's."""
        word = HEADER_WORDS + token % self.capacity * RECORD_WORDS
        words = self.words
        if token < 0 or words[word] != token + 1:
            return False
        if flags:
            self._halves[(word << 1) + _FLAGS_HALF] |= flags
        words[word + END_WORD] = end_ns
        self._halves[(word << 1) + _STATE_HALF] = state
        return True

    def set_state(self, token: int, state: int) -> bool:
        word = HEADER_WORDS + token % self.capacity * RECORD_WORDS
        if token < 0 or self.words[word] != token + 1:
            return False
        self._halves[(word << 1) + _STATE_HALF] = state
        return True

    def add_flags(self, token: int, flags: int) -> bool:
        word = HEADER_WORDS + token % self.capacity * RECORD_WORDS
        if token < 0 or self.words[word] != token + 1:
            return False
        self._halves[(word << 1) + _FLAGS_HALF] |= flags
        return True

    def set_times(self, token: int, start_ns: int, end_ns: int, *, flags: int, state: int = State.DONE) -> bool:
        """Close record *token* with times measured elsewhere (on a device); *flags* are added to its own."""
        word = HEADER_WORDS + token % self.capacity * RECORD_WORDS
        words, halves = self.words, self._halves
        if token < 0 or words[word] != token + 1:
            return False
        words[word + _START_WORD] = start_ns
        words[word + END_WORD] = end_ns
        halves[(word << 1) + _FLAGS_HALF] |= flags
        halves[(word << 1) + _STATE_HALF] = state
        return True

    def take_back(self, since: int, flags: int) -> None:
        """Unmake the records begun at or after token *since* that have one of *flags*: their slots are empty again.

        Who still holds a token of one completes nothing.
        """
        words, head = self.words, self.head
        for token in range(max(since, head - self.capacity), head):
            word = HEADER_WORDS + token % self.capacity * RECORD_WORDS
            if words[word] == token + 1 and self._halves[(word << 1) + _FLAGS_HALF] & flags:
                words[word] = 0
                self.memory[word << 3 : (word + RECORD_WORDS) << 3] = bytes(layout.RECORD_BYTES)

    def count_dropped(self) -> None:
        """Something of this process could not be recorded."""
        self.words[layout.LIVE_DROPPED] += 1

    def detach(self) -> None:
        """From now on write into private memory: in a forked child the file is its parent's."""
        self.memory = mmap.mmap(-1, len(self.memory))
        self.words = memoryview(self.memory).cast("q")
        self._halves = memoryview(self.memory).cast("I")

    @property
    def head(self) -> int:
        """Records begun so far."""
        return self.words[_HEAD]

    def close(self, now_ns: int) -> None:
        """Mark the ring as ended in good order. The mapping stays: late callbacks of other threads may still write."""
        self.words[_CLOSED] = now_ns
