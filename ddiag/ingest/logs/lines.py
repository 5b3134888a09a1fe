"""A text of any length as chunks of whole lines, each with some of what follows it, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddiag.ingest.logs.envelope import Labels, labels_in, opened, without_colours
from ddiag.ingest.logs.line import Line

READ_BYTES = 4 << 20
AHEAD_BYTES = 256 << 10
"""What stays readable behind the lines that are offered, for blocks that go on."""
LONGEST_BYTES = 16 << 20
"""A line longer than this is cut."""
MOST_DIGITS = 4000
"""A longer row of digits is no number but damage, and Python refuses to read it as one."""
_ENDLESS = re.compile(rf"\d{{{MOST_DIGITS},}}")
SHOWN_BYTES = 64 << 10
"""Of a longer line, what parsers see."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive lines. ``\\n`` and the ``\\r`` of progress bars both end one; only ``\\n`` counts."""

    data: bytes
    ends: npt.NDArray[np.int64]
    """Where each line ends: the position of its separator."""
    numbers: npt.NDArray[np.int64]
    """1-based, per line."""
    offered: int
    """How many of the lines are this chunk's own; the rest come again in the next."""
    labels: Labels
    final: bool = False
    """Nothing comes after it."""

    def index_of(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Which line each position is in."""
        return np.searchsorted(self.ends, positions, side="left")

    def line(self, index: int) -> Line:
        start = int(self.ends[index - 1]) + 1 if index else 0
        end = min(int(self.ends[index]), start + SHOWN_BYTES)
        raw = self.data[start:end].decode("utf-8", errors="replace").rstrip("\r").replace("\0", "")
        if len(raw) > MOST_DIGITS:
            raw = _ENDLESS.sub(lambda number: number[0][:20], raw)
        seen = opened(raw, self.labels)
        return Line(
            int(self.numbers[index]),
            seen.text,
            raw,
            seen.rank,
            seen.local_rank,
            seen.host,
            pid=seen.pid,
            task=seen.task,
            outer=seen.stamp,
            _after=lambda: self.after(index),
            _before=lambda: (self.line(earlier) for earlier in range(index - 1, -1, -1)),
        )

    def after(self, index: int) -> Iterator[Line]:
        return (self.line(later) for later in range(index + 1, self.ends.size))


def chunks(read: Callable[[int], bytes]) -> Iterator[Chunk]:
    """The text that *read* gives, chunk by chunk."""
    carried, counted = b"", 0
    labels: Labels | None = None
    while True:
        more = read(READ_BYTES)
        data = carried + without_colours(more)
        if labels is None:
            labels = labels_in(data[:SHOWN_BYTES].decode("utf-8", errors="replace").splitlines())
        if not data:
            return
        ends = _ends(data, last=not more)
        offered = ends.size if not more else int(np.searchsorted(ends, len(data) - AHEAD_BYTES))
        if more and not offered and len(data) < LONGEST_BYTES:
            carried = data
            continue
        offered = offered or ends.size
        newlines = np.frombuffer(data, np.uint8)[np.minimum(ends, len(data) - 1)] != 13
        numbers = counted + 1 + np.concatenate(([0], np.cumsum(newlines[:-1]))).astype(np.int64)
        if offered:
            yield Chunk(data, ends, numbers, offered, labels, not more)
            counted = int(numbers[offered - 1]) - int(not newlines[offered - 1])
            carried = data[int(ends[offered - 1]) + 1 :]
        if not more:
            return


def _ends(data: bytes, *, last: bool) -> npt.NDArray[np.int64]:
    """Positions of line ends in *data*; the text's very end is one."""
    letters = np.frombuffer(data, np.uint8)
    mark = letters == 10
    if b"\r" in data:
        returns = letters[:-1] == 13
        returns &= ~mark[1:]
        returns[:-1] &= ~returns[1:]
        mark[:-1] |= returns
    ends = np.flatnonzero(mark)
    at_end = ends.size and ends[-1] == letters.size - 1
    if (last and not at_end) or (len(data) >= LONGEST_BYTES and not ends.size):
        ends = np.append(ends, letters.size)
    return ends.astype(np.int64)
