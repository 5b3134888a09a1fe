"""The monitor of the watchdog: the thread that should watch collectives made no progress itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.c10 import rank_of, tag_in
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

_STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d+) ?seconds")
_MONITOR = re.compile(r"Heartbeat monitor timed out|due to ProcessGroup\w* watchdog hang|no heartbeat of its watchdog")
_SIZE = re.compile(r"workMetaList_\.size\(\) ?= ?(\d+)")


class Heartbeat:
    """One event per rank and process group, however many lines say it."""

    needles: tuple[str, ...] = (
        "Heartbeat monitor timed out", "watchdog got stuck for", "watchdog hang", "no heartbeat of its watchdog",
    )  # fmt: skip

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], Event] = {}

    def line(self, line: Line) -> Iterator[Seen]:
        stuck = line.searched(_STUCK, 4) if "watchdog got stuck" in line.text else None
        if not (stuck or _MONITOR.search(line.text)):
            return
        tag = tag_in(line.text)
        size = _SIZE.search(line.text)
        fields: dict[str, Value] = dict(tag.fields)
        fields |= {"seconds": int(stuck["seconds"])} if stuck else {}
        fields |= {"work_list_size": int(size[1])} if size else {}
        rank = rank_of(line, tag)
        key = (rank, tag.group)
        if key not in self._seen or (stuck and self._seen[key].integer("seconds") is None):
            event = Event("c10d.heartbeat", fields, rank=rank)
            self._seen[key] = event
            yield event

    def end(self) -> Iterable[Seen]:
        return ()
