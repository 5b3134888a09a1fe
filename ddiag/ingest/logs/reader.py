"""One text file to clues: every line that a parser may know is offered to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.logs.line import Line, LogParser
from ddiag.ingest.logs.registry import PARSERS
from ddiag.ingest.sources import PlainText, Source
from ddiag.model.incident import Seen

READ_BYTES = 4 << 20


def read(source: Source, text: PlainText) -> Clues:
    """Everything the parsers know of *text*; a file that says nothing known is no error."""
    parts = []
    while chunk := text.read(READ_BYTES):
        parts.append(chunk)
    lines = b"".join(parts).decode("utf-8", errors="replace").splitlines()
    records = list(parse(lines, PARSERS, source.label))
    notes = (text.damage,) if text.damage else ()
    return Clues(source, "log", to_tables(records), read=len(lines), notes=notes)


def parse(lines: Sequence[str], makers: Sequence[Callable[[], LogParser]], label: str) -> Iterator[Seen]:
    """What the parsers that *makers* make see in *lines* of the file *label*."""
    parsers = [make() for make in makers]
    for index, raw in enumerate(lines):
        for parser in parsers:
            if any(needle in raw for needle in parser.needles):
                line = _line(lines, index)
                yield from (_placed(record, line, label) for record in parser.line(line))
    for parser in parsers:
        yield from parser.end()


def _line(lines: Sequence[str], index: int) -> Line:
    return Line(
        index + 1,
        lines[index],
        lines[index],
        _after=lambda: (_line(lines, later) for later in range(index + 1, len(lines))),
    )


def _placed(record: Seen, line: Line, label: str) -> Seen:
    """The record with where and by whom it was said, where it does not say so itself."""
    known = {one.name for one in dataclasses.fields(record)}
    hints: dict[str, Any] = {"rank": line.rank, "host": line.host, "ts_ns": line.ts_ns, "clock": line.clock}
    if getattr(record, "ts_ns", None) is not None:
        hints.pop("clock")
    hints |= {"source": f"{label}:{line.number}", "text": line.text}
    missing = {
        name: value for name, value in hints.items() if name in known and getattr(record, name) in (None, "") and value
    }
    return dataclasses.replace(record, **missing)
