"""The prefix NCCL puts before each of its messages, in every version from 2.10 on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import LOCAL, UNDATED, Event, Value

_PREFIX = re.compile(
    r"(?:\[(?P<ts>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.\d+)?\] )?"
    r"(?P<host>[\w.-]+|<[\w.-]+>):(?P<pid>\d+):(?P<tid>\d+) \[(?P<dev>-?\d+)\] "
    r"(?:(?P<src>\S+:\d+|\S+\.\w+) (?:\((?P<fn>[^)]*)\) )?)?"
    r"NCCL (?P<level>INFO|WARN|TRACE|CALL|VERSION|ABORT|ATTRIB) (?P<msg>.*)"
)
_TRIMMED = re.compile(
    r"(?:\[(?P<dev>\d+)\] )?(?P<src>[\w./]+\.(?:cc|cu|h|c):\d+) (?:\((?P<fn>[^)]*)\) )?NCCL (?P<level>WARN) (?P<msg>.*)"
)
_BARE = re.compile(r"\bNCCL (?P<level>INFO|WARN) (?P<msg>.*)")


@dataclass(frozen=True)
class Said:
    """One message of NCCL, without its prefix."""

    text: str
    warn: bool
    host: str | None = None
    pid: int | None = None
    dev: int | None = None
    where: str = ""
    """Source file and line of a warning: ``transport/net_ib.cc:95``."""
    ts_ns: int | None = None

    def event(self, kind: str, fields: Mapping[str, Value]) -> Event:
        known = {"pid": self.pid, "dev": self.dev} | dict(fields)
        clock = UNDATED if self.ts_ns is None else LOCAL
        return Event(kind, known, host=self.host, ts_ns=self.ts_ns, clock=clock)


def said(line: Line) -> Said | None:
    """The message in *line*; None when NCCL did not write it."""
    match = _PREFIX.search(line.text)
    if match is not None:
        return Said(
            match["msg"].rstrip(),
            match["level"] == "WARN",
            match["host"],
            int(match["pid"]),
            int(match["dev"]),
            match["src"] or "",
            _stamp(match["ts"]),
        )
    match = _TRIMMED.search(line.text)
    if match is not None:
        return Said(
            match["msg"].rstrip(), warn=True, dev=int(match["dev"]) if match["dev"] else None, where=match["src"]
        )
    match = _BARE.search(line.text)
    return None if match is None else Said(match["msg"].rstrip(), match["level"] == "WARN")


def _stamp(text: str | None) -> int | None:
    """Local time without a zone, counted as if it were UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace("T", " ")).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1_000_000_000
