"""Dying interpreters (faulthandler, signal handlers of MPI and UCX) and stacks of living ones (py-spy)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Stack

_FATAL = re.compile(r"Fatal Python error: (?P<reason>.+)")
_CAUGHT = re.compile(
    r"(?:Caught signal \d+ \((?P<ucx>[^)]+)\)|Signal: (?P<mpi>[A-Z][\w ]+?) \(\d+\)|"
    r"terminate called after throwing an instance of '(?P<cpp>[^']+)')"
)
_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\)"
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?: in (?P<name>\S+))?')
_SPIED = re.compile(r"^\s*Process (?P<pid>\d+): (?P<command>.+)$")
_SPY_THREAD = re.compile(r"^\s*Thread (?P<id>0x[0-9A-Fa-f]+|\d+) ?\((?P<state>[\w+ ]+)\)(?:: ?\"(?P<name>[^\"]*)\")?")
_SPY_FRAME = re.compile(r"^\s+(?P<name>\S.*?) \((?P<place>[^()]+?(?::\d+)?)\)\s*$")
_RANK = re.compile(r"(?<!local)(?:--rank[= ]|\bRANK=)(\d+)")
_THREADS, _DEPTH = 400, 200


class Faults:
    """``python.fatal`` for what killed an interpreter; stacks for every thread that is shown."""

    needles: tuple[str, ...] = (
        "Fatal Python error", "Caught signal", "Signal: ", "terminate called after", "(most recent call first)",
        "Process ", "Thread ",
    )  # fmt: skip

    def __init__(self) -> None:
        self._pid: int | None = None
        self._rank: int | None = None

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        if found := _FATAL.search(text):
            yield Event("python.fatal", {"reason": found["reason"].strip()})
        elif found := _CAUGHT.search(text):
            if found["cpp"] and _by_watchdog(line):
                return
            yield Event("python.fatal", {"reason": found["ucx"] or found["mpi"] or f"uncaught {found['cpp']}"})
        elif found := _THREAD.search(text):
            name = found["name"] or found["id"]
            frames = tuple(_frames(line))
            if frames:
                state = "active" if found["current"] == "Current thread" else ""
                yield Stack(frames, line.rank, line.host, line.pid, name, state)
        elif found := _SPIED.match(text):
            self._pid = int(found["pid"])
            named = _RANK.search(found["command"])
            self._rank = line.rank if line.rank is not None else int(named[1]) if named else None
        elif found := _SPY_THREAD.match(text):
            frames = tuple(_spied(line))
            if frames:
                state = found["state"].replace("active+gil", "gil")
                rank = line.rank if line.rank is not None else self._rank
                yield Stack(frames, rank, line.host, self._pid, found["name"] or found["id"], state)

    def end(self) -> Iterable[Seen]:
        return ()


def _by_watchdog(line: Line) -> bool:
    """The watchdog throws on purpose; what it throws it has said before."""
    return any("watchdog" in later.text.lower() for later in line.following(3))


def _frames(line: Line) -> Iterator[str]:
    for later in line.own(_DEPTH):
        found = _FRAME.search(later.text)
        if found is None:
            return
        yield f"{found['name'] or '<module>'} ({found['file']}:{found['line']})"


def _spied(line: Line) -> Iterator[str]:
    for later in line.own(_DEPTH):
        found = _SPY_FRAME.match(later.text)
        if found is None:
            return
        yield f"{found['name']} ({found['place']})"
