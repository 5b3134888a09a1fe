"""Python's tracebacks, alone, chained, prefixed with a rank, or of several ranks in turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S.*))?')
_RAISED = re.compile(
    r"^\s*(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Warning|Cancelled|Iteration|OutOfMemory\w*)"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception)\w*)(?:: ?(?P<message>.*))?$"
)
_NAMED = re.compile(r"\brank\W{0,3}(\d{1,6})\b.{0,20}Traceback \(", re.IGNORECASE)
"""A script that says whose traceback it prints."""
_THREAD = re.compile(r"Exception in thread (\S+)")
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_LINES = 400
_MORE_OF_MESSAGE = 6
_RECORD = re.compile(
    r"^\s*(?:\[|\d{4}-\d\d-\d\d|[VIWEF]\d{4} |Exception raised from|frame #|[\w.-]+:\d+:\d+ \[|=+$|-+$)"
)
_ALONE = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)): (?P<message>\S.*)$")
_LAUNCHERS = (
    "ChildFailedError", "SignalException", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException",
)  # fmt: skip
"""Raised by launchers about a worker: the worker's own error is elsewhere."""


class Traceback:
    """One event per chain of exceptions; a line with only the exception counts where no traceback was kept."""

    needles: tuple[str, ...] = (HEADER, "Error: ", "Exception: ", "KeyboardInterrupt")

    def __init__(self) -> None:
        self._until: dict[object, int] = {}
        self._said: set[tuple[object, ...]] = set()

    def line(self, line: Line) -> Iterator[Seen]:
        if line.number <= self._until.get(line.writer, 0):
            return
        if HEADER in line.text:
            if re.search(r"^\s*traceback\s*: ", line.text):
                return
            yield from self._chain(line)
        elif found := _ALONE.match(line.text):
            kind, message = found["type"], _message(found["message"], line.own(_MORE_OF_MESSAGE))
            if (line.writer, kind, message[:60]) not in self._said:
                self._said.add((line.writer, kind, message[:60]))
                yield _event(kind, message, [], None, line)

    def end(self) -> Iterable[Seen]:
        return ()

    def _chain(self, line: Line) -> Iterator[Seen]:
        lines = [line, *line.own(_LINES)]
        read = _read([one.text for one in lines])
        before = next((earlier.text for earlier in line.preceding(1)), "")
        if read is None:
            return
        event, count = read
        last = lines[min(count, len(lines) - 1)]
        self._until[line.writer] = last.number
        self._said.add((line.writer, event.word("type"), event.word("message")[:60]))
        if "Exception ignored in" in before:
            return
        thread = _THREAD.search(before)
        fields = {**event.fields, "local_rank": line.local_rank, "thread": thread[1] if thread else None}
        named = _NAMED.search(line.text) if line.rank is None else None
        rank = int(named[1]) if named else line.rank
        yield Event(event.kind, fields, text=event.text, rank=rank, host=line.host)


def exception_in(lines: Sequence[str]) -> Event | None:
    """The exception that the traceback in *lines* (of one worker, in torchrun's block: indented) ends with."""
    start = next((place for place, text in enumerate(lines) if HEADER in text), None)
    if start is None:
        return None
    below = [text for text in lines[start + 1 :] if text.strip()]
    margin = min((len(text) - len(text.lstrip()) for text in below), default=0)
    read = _read([lines[start], *(text[margin:] for text in below)])
    return read[0] if read else None


def _read(lines: Sequence[str]) -> tuple[Event, int] | None:
    """The event of the chain that begins in the first line, and how many lines it took."""
    frames: list[str] = []
    first: str | None = None
    at, raised, end = 1, None, 0
    while at < len(lines):
        text = lines[at]
        if found := _FRAME.search(text):
            frames.append(f"{(found['name'] or '<module>').strip()} ({found['file']}:{found['line']})")
        elif raised is None and not text.startswith((" ", "\t")) and (found := _RAISED.match(text)):
            rest = lines[at + 1 : at + 1 + _MORE_OF_MESSAGE]
            raised = (found["type"], _joined(found["message"] or "", rest))
            following = _next_in_chain(lines, at + 1)
            end = at
            if following is None:
                break
            first = first or f"{raised[0]}: {raised[1]}"[:300]
            at, raised, frames = following, None, []
        elif raised is None and frames and _begins_other(text):
            break
        at += 1
    if raised is None:
        return None
    kind, message = raised
    return _event(kind, message, frames[::-1], first, None), end


def _next_in_chain(lines: Sequence[str], at: int) -> int | None:
    """Where the next traceback of the chain begins, when the lines after an exception announce one."""
    for place in range(at, min(at + 40, len(lines))):
        if any(mark in lines[place] for mark in _CHAIN):
            return next((p for p in range(place, min(place + 6, len(lines))) if HEADER in lines[p]), None)
        if HEADER in lines[place]:
            return None
    return None


def _begins_other(text: str) -> bool:
    return HEADER in text or bool(re.match(r"^\[[VIWEF]\d{3,4} |^=+$|^[VIWEF]\d{4} \d\d:", text))


def _message(first: str, rest: Iterable[Line]) -> str:
    return _joined(first, [line.text for line in rest])


def _joined(first: str, rest: Sequence[str]) -> str:
    """A message of several lines, as NCCL's errors have; a new log record ends it."""
    parts = [first.strip()]
    for text in rest:
        if not text.strip() or _RECORD.match(text) or _RAISED.match(text) or _FRAME.search(text) or HEADER in text:
            break
        parts.append(text.strip())
    return "\n".join(part for part in parts if part)[:1500]


def _event(kind: str, message: str, frames: list[str], caused_by: str | None, line: Line | None) -> Event:
    fields: dict[str, Value] = {
        "type": kind, "message": message, "frames": [*frames], "caused_by": caused_by,
        "of_launcher": kind.rsplit(".", 1)[-1] in _LAUNCHERS,
    }  # fmt: skip
    text = f"{kind}: {message.splitlines()[0] if message else ''}".rstrip(": ")
    if line is None:
        return Event("python.exception", fields, text=text)
    fields["local_rank"] = line.local_rank
    return Event("python.exception", fields, line.rank, line.host, text=text)
