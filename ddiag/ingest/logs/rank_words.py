"""The last words of each rank: lines that a training script itself printed and that name their rank."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen

KEPT = 4
"""Last lines kept of each rank."""
_NAMED = re.compile(r"\b[Rr]ank[ =:#]?\s?(\d+)\b|\[rank(\d+)\]")
_BY_MACHINES = re.compile(
    r"ProcessGroup|NCCL|c10d|torchelastic|Watchdog|WorkNCCL|monitoredBarrier|Traceback|^\s+File \"|Error\b|Exception|"
    r"CollectiveFingerPrint|transport/tcp|socket\.cpp|local_rank|what\(\):|Received a |\bXid\b|MnRtt|"
    r"Rank \d+\] (time|step)"
)
_SEVERAL = re.compile(r"\b[Rr]anks\b")


class RankWords:
    """Keeps the last few lines that name exactly one rank and that no machine printed."""

    needles: tuple[str, ...] = ("ank",)
    sparse = True

    def __init__(self) -> None:
        self._last: dict[int, deque[Event]] = {}

    def line(self, line: Line) -> Iterable[Seen]:
        text = line.text.strip()
        rank = line.rank if line.rank is not None else _rank_in(text)
        if rank is None or not text or _BY_MACHINES.search(text) or _SEVERAL.search(text):
            return ()
        event = Event("log.said", {}, rank, line.host, line.ts_ns, line.clock, text, f":{line.number}")
        self._last.setdefault(rank, deque(maxlen=KEPT)).append(event)
        return ()

    def end(self) -> Iterable[Seen]:
        for events in self._last.values():
            yield from events


def _rank_in(text: str) -> int | None:
    named = {int(one or two) for one, two in _NAMED.findall(text)}
    return named.pop() if len(named) == 1 else None
