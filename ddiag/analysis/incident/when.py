"""When events happened, also those that print no time: their file's neighbours do."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events

_PLACE = re.compile(r"^(?P<file>.*):(?P<line>\d+)$")


@dataclass(frozen=True)
class When:
    """A place in time: the printed time, or that of the nearest line before it in its file; and the line."""

    ts_ns: int | None
    file: str
    line: int


class Clock:
    """Places events in time."""

    """When events happened, also those that print no time: their file's neighbours do."""

    def __init__(self, events: Events) -> None:
        dated: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for event in events.all:
            file, line = file_line(event)
            if event.ts_ns is not None and event.get("block") is None:
                dated[file].append((line, event.ts_ns))
        self._dated = {file: sorted(found) for file, found in dated.items()}

    def when(self, event: Event) -> When:
        file, line = file_line(event)
        ts_ns = event.ts_ns
        known = self._dated.get(file, [])
        if ts_ns is None and known:
            place = bisect_right(known, (line, 1 << 62))
            ts_ns = known[place - 1][1] if place else known[0][1]
        return When(ts_ns, file, line)


def file_line(event: Event) -> tuple[str, int]:
    found = _PLACE.match(event.source)
    return (found["file"], int(found["line"])) if found else (event.source, 0)


def compare(one: When, other: When) -> int | None:
    """-1, 0 or 1; None when nothing connects them. Lines of one moment in one file have their order."""
    dated = one.ts_ns is not None and other.ts_ns is not None
    if dated and one.ts_ns != other.ts_ns:
        return ((one.ts_ns or 0) > (other.ts_ns or 0)) - ((one.ts_ns or 0) < (other.ts_ns or 0))
    if one.file == other.file:
        return (one.line > other.line) - (one.line < other.line)
    return 0 if dated else None


def sort_key(when: When) -> tuple[bool, int, str, int]:
    return (when.ts_ns is None, when.ts_ns or 0, when.file, when.line)
