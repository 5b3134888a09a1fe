"""A line of a log without its envelope, and what a parser of lines is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Protocol

from ddiag.ingest.logs.stamps import NONE, Stamp, finer, stamp_of
from ddiag.model.incident import Seen


def _nothing() -> Iterator[Line]:
    return iter(())


@dataclass(eq=False)
class Line:
    """One line. What the envelope (torchrun, srun, ray, a log shipper) says of its writer are hints."""

    number: int
    """1-based, in the file."""
    text: str
    """Without ANSI codes and envelope; a tqdm bar before the message may still be there: search, do not match."""
    raw: str = ""
    """As in the file, without colours."""
    rank: int | None = None
    """Global rank of the writer, from ``[rank3]:`` or a rank-labelled envelope."""
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    task: int | None = None
    """Label of ``srun -l``: a rank or a node's number."""
    outer: Stamp = NONE
    """Time stamp of the envelope."""
    _after: Callable[[], Iterator[Line]] = field(default=_nothing, repr=False)
    _before: Callable[[], Iterator[Line]] = field(default=_nothing, repr=False)

    @cached_property
    def _stamp(self) -> Stamp:
        return finer(stamp_of(self.text), self.outer)

    @property
    def ts_ns(self) -> int | None:
        """On :attr:`clock`; see :class:`ddiag.model.incident.Event`."""
        return self._stamp[0]

    @property
    def clock(self) -> str:
        return self._stamp[1]

    @property
    def writer(self) -> tuple[object, ...]:
        """Lines with the same come from the same process, as far as the envelope tells."""
        return (self.host, self.rank, self.local_rank, self.pid, self.task)

    def following(self, most: int) -> Iterator[Line]:
        """The next *most* lines of the file, for blocks and wrapped messages."""
        return islice(self._after(), most)

    def preceding(self, most: int) -> Iterator[Line]:
        """The lines before it, nearest first, as far as they are still held."""
        return islice(self._before(), most)

    def own(self, most: int) -> Iterator[Line]:
        """The next lines of the same writer among the next *most*, where several write into one file in turn."""
        return (line for line in self.following(most) if line.writer == self.writer)

    def searched(self, pattern: re.Pattern[str], most: int = 6) -> re.Match[str] | None:
        """*pattern* in this line, or in it and up to *most* following ones that a terminal's width has cut it into."""
        text = self.text
        found = pattern.search(text)
        for line in () if found else self.following(most):
            text += line.raw
            found = pattern.search(text)
            if found:
                break
        return found


class LogParser(Protocol):
    """Takes what it knows out of a file's lines; one object per file, so it may remember.

    A parser of which only the newest lines matter (progress bars) sets ``sparse = True``: where a chunk of the file
    holds thousands of its lines, it is offered some of the first and the last ones.
    """

    needles: tuple[str, ...]
    """A line is offered when it contains one of these (case matters); the fewer lines offered, the faster. Three
    characters or more; seven or more are found fastest."""

    def line(self, line: Line) -> Iterable[Seen]:
        """What this line says; ``source`` may be left empty: the reader fills it in, and rank, host and time too."""

    def end(self) -> Iterable[Seen]:
        """What only the whole file shows."""
