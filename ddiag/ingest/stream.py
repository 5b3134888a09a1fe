"""A trace as a stream of event lists: bounded memory however large the file, strict and fast while the text is sound.

The text is cut into chunks at event boundaries and each chunk is decoded as an array of its own. A boundary is searched
backwards from the end of the chunk; where it turns out to lie inside nested arguments, an earlier one is taken. Chunks
stay below about 2 MB so that their objects fit the processor's cache: with 8 MB, decoding took half as long again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from ddiag.ingest.events import ArrayDecoder, Event
from ddiag.ingest.header import parse_object, parse_tail
from ddiag.ingest.sniff import TRACE_EVENTS
from ddiag.ingest.sources import PlainText
from ddiag.ingest.tolerant import BETWEEN_EVENTS, DECODE_ERRORS, LONE_SURROGATE, decode_tolerantly

CHUNK_BYTES = 1024 * 1024
MAX_EVENT_BYTES = 64 << 20
"""Text without an event boundary for this long is given up."""
MAX_HEADER_BYTES = 64 << 20
TAIL_WINDOW = 16 * 1024
_CLOSE, _COMMA = ord("]"), ord(",")

_EVENT_BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:')
_ARRAY_END = re.compile(rb"[\[\}]\s*\](?=\s*[,\}]|\s*$)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_MAX_TRIES = 3
_MAX_ENDS = 200
MAX_UNCUT_BYTES = 16 << 20
"""With boundaries in it, text this long that cannot be cut at any of them is damaged."""


class Codec(Protocol):
    """Decodes the events of one kind of trace."""

    def __call__(self, array: bytes | memoryview) -> list[Any]:
        """The events of a JSON array; raises one of ``DECODE_ERRORS``."""

    def tolerantly(self, items: bytes) -> tuple[list[Any], int]:
        """The events of damaged text, and how many were dropped."""


class EventStream:
    """Iterate for the events, then read ``metadata`` and the account of what went wrong."""

    def __init__(self, text: PlainText, codec: Codec | None = None) -> None:
        self._text = text
        self.metadata: dict[str, Any] = {}
        """Everything of the top-level object but the events, complete only after iteration."""
        self.dropped = 0
        self.truncated = False
        self.damaged = False
        """Some text was not JSON and was skipped."""
        self._decode = codec or ArrayDecoder()
        self._decode_tolerantly = codec.tolerantly if codec else decode_tolerantly
        self._rest = b""
        self._ended = False
        self._bare = False
        self._found = self._read_header()

    @property
    def has_events(self) -> bool:
        return self._found

    def __iter__(self) -> Iterator[list[Event]]:
        if not self._found:
            return
        while not self._ended:
            data = self._text.read(CHUNK_BYTES)
            if not data:
                yield from self._finish()
                return
            yield from self._whole_events(bytearray().join((b"[", self._rest, data)))
        self._read_tail()

    def _read_header(self) -> bool:
        """Take everything before the first event; the header's keys go to ``metadata``."""
        text = self._text.read(CHUNK_BYTES).removeprefix(b"\xef\xbb\xbf")
        if text.lstrip()[:1] == b"[":
            self._rest = text.lstrip()[1:]
            self._bare = True
            return True
        while (match := TRACE_EVENTS.search(text)) is None:
            more = self._text.read(CHUNK_BYTES)
            if not more or len(text) > MAX_HEADER_BYTES:
                return False
            text += more
        self.metadata.update(parse_object(text[: match.start()]))
        self._rest = text[match.end() :]
        return True

    def _whole_events(self, buffer: bytearray) -> Iterator[list[Event]]:
        """Decode what is complete in *buffer* (with a bracket before it); keep the rest for the next chunk.

        The comma after the last whole event becomes the closing bracket, so the text is not copied to be decoded.
        """
        view = memoryview(buffer)
        for cut in _cuts(buffer):
            comma = buffer.index(b",", cut)
            buffer[comma] = _CLOSE
            events, error = self._try(view[: comma + 1])
            if error is None:
                self._rest = bytes(view[comma + 1 :])
                yield events
                return
            buffer[comma] = _COMMA
            if (end := _array_end(error, buffer)) is not None:
                yield from self._end_array(buffer, end)
                return
            if not _cut_too_early(error):
                yield self._tolerant(bytes(view[1:cut]))
                self._rest = bytes(view[comma + 1 :])
                return
        self._rest = bytes(view[1:])
        if len(buffer) > MAX_UNCUT_BYTES or LONE_SURROGATE.search(buffer):
            yield from self._give_up(buffer)

    def _give_up(self, buffer: bytearray) -> Iterator[list[Event]]:
        """No boundary can be cut at, and more text will not help."""
        if cuts := _cuts(buffer):
            comma = buffer.index(b",", cuts[0])
            self._rest = bytes(buffer[comma + 1 :])
            yield self._tolerant(bytes(buffer[1 : cuts[0]]))
        elif len(buffer) > MAX_EVENT_BYTES:
            self.dropped, self.damaged, self._rest = self.dropped + 1, True, b""

    def _try(self, array: bytes | memoryview) -> tuple[list[Event], BaseException | None]:
        try:
            return self._decode(array), None
        except DECODE_ERRORS as error:
            return [], error

    def _tolerant(self, items: bytes) -> list[Event]:
        if not items.strip(b" \t\r\n,"):
            return []
        events, dropped = self._decode_tolerantly(items)
        self.dropped += dropped
        self.damaged = self.damaged or dropped > 0
        return events

    def _finish(self) -> Iterator[list[Event]]:
        """The text is at its end: last events, closing bracket, metadata; or the cut."""
        text = b"[" + self._rest
        for end in [match.end() for match in _ARRAY_END.finditer(text)][: -_MAX_ENDS - 1 : -1]:
            tail = parse_tail(text[end:], bare=self._bare)
            if tail is None:
                continue
            events, error = self._try(text[:end])
            if error is not None and _cut_too_early(error):
                continue
            if error is not None and (earlier := _array_end(error, text)) is not None:
                yield from self._end_array(text, earlier)
                self._read_tail()
                return
            yield events if error is None else self._tolerant(text[1 : end - 1])
            self.metadata.update(tail)
            return
        yield from self._finish_truncated()

    def _end_array(self, text: bytes | bytearray, end: int) -> Iterator[list[Event]]:
        """The decoder met the end of the array at *end*: before it are events, after it metadata."""
        yield self._tolerant(bytes(text[1:end]))
        self._rest, self._ended = bytes(text[end + 1 :]), True

    def _finish_truncated(self) -> Iterator[list[Event]]:
        """No end of the file that makes sense: use what is complete."""
        self.truncated = True
        text = b"[%b]" % self._rest.rstrip(b" \t\r\n,]")
        events, error = self._try(text)
        if error is None:
            yield events
            return
        if (end := _array_end(error, text)) is not None:
            yield from self._end_array(text[:-1], end)
            self._read_tail()
            return
        boundaries = [match.start() + 1 for match in BETWEEN_EVENTS.finditer(text)]
        for cut in boundaries[: -_MAX_TRIES - 1 : -1]:
            events, error = self._try(text[:cut] + b"]")
            if error is None:
                yield events
                return
        if boundaries:
            yield self._tolerant(text[1 : boundaries[-1]])

    def _read_tail(self) -> None:
        """The array ended inside the buffer: the rest of the text is metadata."""
        tail = self._rest
        while len(tail) < MAX_HEADER_BYTES and (more := self._text.read(CHUNK_BYTES)):
            tail += more
        parsed = parse_tail(tail, bare=self._bare)
        if parsed is None:
            self.truncated = True
            parsed = parse_object(b"{" + tail.lstrip().removeprefix(b","))
        self.metadata.update(parsed)


def _cuts(text: bytearray) -> list[int]:
    """Ends of events, last first: the likeliest boundaries near the end of the text."""
    for start in (max(0, len(text) - TAIL_WINDOW), 0):
        ends = [match.start() + 1 for match in _EVENT_BOUNDARY.finditer(text, start)]
        if ends:
            return ends[: -_MAX_TRIES - 1 : -1]
    return [match.start() + 1 for match in BETWEEN_EVENTS.finditer(text)][: -_MAX_TRIES - 1 : -1]


def _array_end(error: BaseException, text: bytes | bytearray) -> int | None:
    """Place of the bracket that closes the events, if the decoder found text after it."""
    match = _TRAILING.search(str(error))
    if match is None:
        return None
    end = text.rfind(b"]", 0, int(match.group(1)))
    return end if end > 0 else None


def _cut_too_early(error: BaseException) -> bool:
    """The cut lies inside an event: brackets are still open."""
    return not isinstance(error, msgspec.ValidationError) and "truncated" in str(error)
