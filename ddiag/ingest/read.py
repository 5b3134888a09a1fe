"""One file: sniff it, hand it to the reader of its kind, turn every expected failure into one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddiag.ingest import kineto, tensorflow
from ddiag.ingest.clues import Clues
from ddiag.ingest.discover import why_unreadable
from ddiag.ingest.kinds import KINDS
from ddiag.ingest.logs import reader as logs
from ddiag.ingest.sniff import HEAD_BYTES, KINETO, TENSORFLOW, TEXT, XPLANE, could_have_later_events, sniff
from ddiag.ingest.sources import STORAGE_ERRORS, PlainText, Source, open_text
from ddiag.ingest.trace import OtherFileError, Several, Trace, UnusableError

Reader = Callable[[Source, PlainText], Trace]

READERS: dict[str, Reader] = {
    KINETO: kineto.read,
    TENSORFLOW: tensorflow.read,
    XPLANE: tensorflow.read_xplane_file,
}
"""Reader by kind of evidence, as :func:`ddiag.ingest.sniff.sniff` names it."""


NOTHING_KNOWN = "text in which ddiag knows no line: not a PyTorch trace, nor a log or tool output with anything to tell"


@dataclass(frozen=True)
class Refused:
    """A file that gave nothing, and why."""

    source: Source
    why: str
    is_trace: bool = True
    """False for what is no trace at all: expected in a folder, an error when named."""


def read_source(source: Source) -> Trace | Several | Clues | Refused:
    """Read one file; never raises for bad evidence."""
    try:
        with open_text(source) as text:
            return _read(source, text)
    except UnusableError as error:
        return Refused(source, str(error), is_trace=not isinstance(error, OtherFileError))
    except STORAGE_ERRORS as error:
        return Refused(source, why_unreadable(error))
    except MemoryError:
        return Refused(source, "not enough memory to read it")


def _read(source: Source, text: PlainText) -> Trace | Several | Clues | Refused:
    head = text.peek(HEAD_BYTES)
    seen = sniff(head)
    if not seen.kind and could_have_later_events(head):
        head = text.peek(16 * HEAD_BYTES)
        seen = sniff(head)
    if not head and text.damage:
        return Refused(source, text.damage)
    if seen.kind in ("", TEXT):
        for kind in KINDS:
            if kind.matches(head[:HEAD_BYTES], source.name):
                return kind.read(source, text)
    if seen.kind == TEXT:
        found = logs.read(source, text)
        return found if found.tables else Refused(source, NOTHING_KNOWN, is_trace=False)
    if not seen.kind:
        return Refused(source, seen.why, is_trace=False)
    reader = READERS.get(seen.kind)
    if reader is None:
        return Refused(source, f"a {seen.kind} trace: not supported")
    return reader(source, text)
