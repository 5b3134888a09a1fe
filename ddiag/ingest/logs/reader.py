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
from ddiag.ingest.logs.envelope import MOST_RANKS
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
UNPROVEN, PROVEN = 2_000, 15_000
"""Lines with a needle after which a file's further ones are thinned: a needle that never told anything is a common word
of that file, and of one that always does (a metric in each step) a sample shows the series."""
KEPT, KEPT_FINAL = 64, 4096
"""Lines of a chunk that are kept of a thinned needle, spread and at its ends; and of the last chunk."""

TAIL_BYTES = 64 << 10
"""Of a chunk's end, where common needles are looked for."""


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
        self._sparse = [getattr(parser, "sparse", False) for parser in self.parsers]
        owners: dict[str, list[int]] = {}
        for index, parser in enumerate(self.parsers):
            for needle in parser.needles:
                owners.setdefault(needle, []).append(index)
        self.texts = tuple(owners)
        self._scans = [(_untuned(self.texts), np.arange(len(self.texts)), 0)]
        self._tuned_for = -1
        self._owners = list(owners.values())
        self._seen = [0] * len(self.texts)
        self._unproven = [set(parser.needles) for parser in self.parsers]
        """Per parser, the needles of lines that told nothing yet."""

    def tune(self, sample: bytes) -> None:
        """Look for the pieces that are rare in this file, and for common needles at the ends of chunks only."""
        common = [i for i, owners in enumerate(self._owners) if all(self._is_common(i, owner) for owner in owners)]
        rare = sorted(set(range(len(self.texts))) - set(common))
        self._tuned_for = len(common)
        self._scans = [(Needles([self.texts[i] for i in rare], sample), np.array(rare, np.int64), 0)]
        if common:
            self._scans.append((Needles([self.texts[i] for i in common]), np.array(common, np.int64), TAIL_BYTES))

    def wanted(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        """(line, parser) in the order of the file; parsers in their order."""
        places, which = self._found(chunk)
        if not places.size:
            return
        lines = chunk.index_of(places)
        keys = []
        for needle in np.unique(which).tolist():
            mine = lines[which == needle]
            mine = np.unique(mine[mine < chunk.offered])
            self._seen[needle] += mine.size
            for owner in self._owners[needle]:
                kept = _thinned(mine, final=chunk.final) if self._is_common(needle, owner) else mine
                keys.append(kept * len(self.parsers) + owner)
        for key in np.unique(np.concatenate(keys)).tolist():
            yield divmod(key, len(self.parsers))

    def _found(self, chunk: Chunk) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        parts = []
        for needles, index, tail in self._scans:
            end = int(chunk.ends[chunk.offered - 1])
            start = 0 if tail == 0 or chunk.final else max(0, end - tail)
            places, which = needles.find(chunk.data[start:end] if start or tail else chunk.data)
            parts.append((places + start, index[which]))
        return np.concatenate([places for places, _ in parts]), np.concatenate([which for _, which in parts])

    def needs_tuning(self) -> bool:
        """Whether more needles have turned out to be common words of this file."""
        common = sum(all(self._is_common(i, o) for o in owners) for i, owners in enumerate(self._owners))
        return common > self._tuned_for

    def told(self, parser: int, line: Line) -> None:
        """*line* told something: its needles are worth looking for."""
        unproven = self._unproven[parser]
        if unproven:
            unproven -= {needle for needle in unproven if needle in line.raw}

    def _is_common(self, needle: int, owner: int) -> bool:
        most = UNPROVEN if self.texts[needle] in self._unproven[owner] else PROVEN
        return self._sparse[owner] or self._seen[needle] > most


def _thinned(lines: npt.NDArray[np.int64], *, final: bool) -> npt.NDArray[np.int64]:
    """Half of what is kept at the end, the rest spread evenly; of the file's last chunk all of it at the end."""
    most = KEPT_FINAL if final else KEPT
    if lines.size <= most:
        return lines
    if final:
        return lines[-most:]
    spread = np.linspace(0, lines.size - most // 2, most // 2, endpoint=False).astype(np.int64)
    return np.concatenate((lines[spread], lines[-(most // 2) :]))


@lru_cache(maxsize=8)
def _untuned(texts: tuple[str, ...]) -> Needles:
    return Needles(texts)


def _offer(
    read: Callable[[int], bytes], makers: Sequence[Callable[[], LogParser]], label: str, taken: _Taken
) -> Iterator[Seen]:
    readers = _Readers(makers)
    for place, chunk in enumerate(chunks(read)):
        if place and len(chunk.data) >= SAMPLE_BYTES and readers.needs_tuning():
            readers.tune(chunk.data[:SAMPLE_BYTES])
        taken.lines = int(chunk.numbers[chunk.offered - 1])
        at, line = -1, None
        for index, parser in readers.wanted(chunk):
            if index != at or line is None:
                at, line = index, chunk.line(index)
            told = False
            for record in readers.parsers[parser].line(line):
                told = True
                yield _placed(record, line, label)
            if told:
                readers.told(parser, line)
    for one in readers.parsers:
        yield from (_placed(record, Line(0, ""), label) for record in one.end())


def _placed(record: Seen, line: Line, label: str) -> Seen:
    """The record with where and by whom it was said, where it does not say so itself."""
    known = _FIELDS[type(record)]
    if not 0 <= (getattr(record, "rank", 0) or 0) < MOST_RANKS:
        unknown: dict[str, Any] = {"rank": None}
        record = dataclasses.replace(record, **unknown)
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
