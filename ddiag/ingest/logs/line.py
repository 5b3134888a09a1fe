"""A line of a log without its envelope, and what a parser of lines is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from ddiag.model.incident import UNDATED, Seen


def _nothing() -> Iterator[Line]:
    return iter(())


@dataclass(frozen=True)
class Line:
    """One line. What the envelope (torchrun, srun, ray, a log shipper) says of its writer are hints."""

    number: int
    """1-based, in the file."""
    text: str
    """Without ANSI codes and envelope; a tqdm bar before the message may still be there: search, do not match."""
    raw: str = ""
    """As in the file."""
    rank: int | None = None
    """Global rank of the writer, from ``[rank3]:`` or a rank-labelled envelope."""
    local_rank: int | None = None
    host: str | None = None
    ts_ns: int | None = None
    clock: str = UNDATED
    """What ``ts_ns`` counts from: see :class:`ddiag.model.incident.Event`."""
    _after: Callable[[], Iterator[Line]] = field(default=_nothing, repr=False)

    def following(self, most: int) -> Iterator[Line]:
        """The next *most* lines of the file, for blocks and wrapped messages."""
        return islice(self._after(), most)


class LogParser(Protocol):
    """Takes what it knows out of a file's lines; one object per file, so it may remember."""

    needles: tuple[str, ...]
    """A line is offered when it contains one of these (case matters); the fewer lines offered, the faster."""

    def line(self, line: Line) -> Iterable[Seen]:
        """What this line says; ``source`` may be left empty: the reader fills it in, and rank, host and time too."""

    def end(self) -> Iterable[Seen]:
        """What only the whole file shows."""
