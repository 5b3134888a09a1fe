"""One text file to clues: every line that a parser may know is offered to it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.logs.line import Line, LogParser
from ddiag.ingest.logs.lines import Chunk, chunks
from ddiag.ingest.logs.needles import SAMPLE_BYTES, Needles
from ddiag.ingest.logs.registry import PARSERS
from ddiag.ingest.sources import PlainText, Source
from ddiag.model.incident import Event, Metric, NodeFact, Seen, Setting, Stack, Standing

BATCH = 50_000
"""Records held as objects before they become columns."""
MOST_OF_A_KIND = 50_000
"""Events of one kind that one file may give; more of them say nothing new."""
SPARSE_FIRST, SPARSE_LAST, SPARSE_FINAL = 16, 128, 4096
"""Lines of a chunk offered to a sparse parser: its first and last ones, and more of the file's end."""


def read(source: Source, text: PlainText) -> Clues:
    """Everything the parsers know of *text*; a file that says nothing known is no error."""
    taken = _Taken()
    for record in _offer(text.read, PARSERS, source.label, taken):
        taken.keep(record)
    notes = (text.damage,) if text.damage else ()
    return Clues(source, "log", taken.tables(), read=taken.lines, dropped=taken.dropped, notes=notes)


def parse(lines: Sequence[str], makers: Sequence[Callable[[], LogParser]], label: str) -> Iterator[Seen]:
    """What the parsers that *makers* make see in *lines* of the file *label*."""
    text = BytesIO("\n".join(lines).encode("utf-8", errors="replace"))
    return _offer(text.read, makers, label, _Taken())


class _Taken:
    """What a file gave so far."""

    def __init__(self) -> None:
        self.lines = self.dropped = 0
        self._records: list[Seen] = []
        self._tables: dict[str, list[pl.DataFrame]] = {}
        self._of_kind: Counter[str] = Counter()

    def keep(self, record: Seen) -> None:
        if isinstance(record, Event):
            self._of_kind[record.kind] += 1
            if self._of_kind[record.kind] > MOST_OF_A_KIND:
                self.dropped += 1
                return
        self._records.append(record)
        if len(self._records) >= BATCH:
            self._flush()

    def tables(self) -> dict[str, pl.DataFrame]:
        self._flush()
        return {name: pl.concat(parts) for name, parts in self._tables.items()}

    def _flush(self) -> None:
        for name, table in to_tables(self._records).items():
            self._tables.setdefault(name, []).append(table)
        self._records = []


class _Readers:
    """The parsers of one file, and which line to offer to which."""

    def __init__(self, makers: Sequence[Callable[[], LogParser]]) -> None:
        self.parsers = [make() for make in makers]
        self.sparse = [getattr(parser, "sparse", False) for parser in self.parsers]
        owners: dict[str, list[int]] = {}
        for index, parser in enumerate(self.parsers):
            for needle in parser.needles:
                owners.setdefault(needle, []).append(index)
        self.texts = tuple(owners)
        self.needles = _untuned(self.texts)
        self._owner = [np.array(found, np.int64) for found in owners.values()]

    def tune(self, sample: bytes) -> None:
        """Look for the pieces that are rare in this file."""
        self.needles = Needles(self.texts, sample)

    def wanted(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        """(line, parser) in the order of the file; parsers in their order."""
        places, which = self.needles.find(chunk.data)
        if not places.size:
            return
        lines = chunk.index_of(places)
        keys = []
        for needle in np.unique(which).tolist():
            mine = lines[which == needle]
            mine = mine[mine < chunk.offered]
            keys += [mine * len(self.parsers) + owner for owner in self._owner[needle]]
        last = SPARSE_FINAL if chunk.final else SPARSE_LAST
        for key in self._thinned(np.unique(np.concatenate(keys)), last).tolist():
            yield divmod(key, len(self.parsers))

    def _thinned(self, keys: npt.NDArray[np.int64], last: int) -> npt.NDArray[np.int64]:
        if keys.size <= SPARSE_FIRST + last or not any(self.sparse):
            return keys
        owner = keys % len(self.parsers)
        kept = np.ones(keys.size, np.bool_)
        for index in np.flatnonzero(self.sparse).tolist():
            mine = np.flatnonzero(owner == index)
            kept[mine[SPARSE_FIRST:-last]] = False
        return keys[kept]


@lru_cache(maxsize=8)
def _untuned(texts: tuple[str, ...]) -> Needles:
    return Needles(texts)


def _offer(
    read: Callable[[int], bytes], makers: Sequence[Callable[[], LogParser]], label: str, taken: _Taken
) -> Iterator[Seen]:
    readers = _Readers(makers)
    for place, chunk in enumerate(chunks(read)):
        if place == 1 and len(chunk.data) >= SAMPLE_BYTES:
            readers.tune(chunk.data[:SAMPLE_BYTES])
        taken.lines = int(chunk.numbers[chunk.offered - 1])
        at, line = -1, None
        for index, parser in readers.wanted(chunk):
            if index != at or line is None:
                at, line = index, chunk.line(index)
            for record in readers.parsers[parser].line(line):
                yield _placed(record, line, label)
    for one in readers.parsers:
        yield from (_placed(record, Line(0, ""), label) for record in one.end())


def _placed(record: Seen, line: Line, label: str) -> Seen:
    """The record with where and by whom it was said, where it does not say so itself."""
    known = _FIELDS[type(record)]
    hints: dict[str, Any] = {"rank": line.rank, "host": line.host, "text": line.text}
    if getattr(record, "ts_ns", 0) is None:
        hints |= {"ts_ns": line.ts_ns, "clock": line.clock}
    if line.number:
        hints["source"] = f"{label}:{line.number}"
    elif record.source.startswith((":", "line ")):
        record = dataclasses.replace(record, source=f"{label}:{record.source.lstrip(':line ')}")
    elif not record.source:
        hints["source"] = label
    missing = {
        name: value
        for name, value in hints.items()
        if name in known and value not in (None, "") and getattr(record, name) in (None, "")
    }
    return dataclasses.replace(record, **missing) if missing else record


_FIELDS: Mapping[type, frozenset[str]] = {
    **{
        kind: frozenset(one.name for one in dataclasses.fields(kind))
        for kind in (Event, Metric, Setting, NodeFact, Stack)
    },
    Standing: frozenset({"source"}),
}
