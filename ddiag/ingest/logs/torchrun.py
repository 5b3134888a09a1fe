"""torchrun's agents, torch 1.13 to 2.12: which worker failed, whom they ended for it, and the block at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.signals import name_of, number_of, of_exit_code
from ddiag.ingest.logs.stamps import stamp_of
from ddiag.ingest.logs.traceback import exception_in
from ddiag.model.incident import Event, Seen, Value

_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\)(?: local_rank: (?P<local>\d+))?(?: \(pid: (?P<pid>\d+)\))?(?: of binary)?"
)
_CLOSING = re.compile(r"Sending process (?P<pid>\d+) closing signal (?P<signal>[\w.]+)")
_FORCED = re.compile(r"Unable to shutdown process (?P<pid>\d+) via [\w.]+, forcefully exiting via (?P<by>[\w.]+)")
_DEATH = re.compile(r"Received (?P<signal>[\w.]+) death signal")
_GOT = re.compile(r"Process (?P<pid>\d+) got signal: (?P<signal>\w+)")
_RESTART = re.compile(r"Worker group FAILED\. (?P<left>\d+)/(?P<of>\d+) attempts left")
_ENTRY = re.compile(r"\[(\d+)\]:\s*$")
_FIELD = re.compile(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(?P<value>.*)$")
_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_CODE = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_SIGNAL = re.compile(r"Signal (?P<number>\d+) \((?P<name>SIG\w+)\) received by PID")
_RULE = re.compile(r"^\s*[-=]{20,}\s*$")
_BLOCK_LINES = 4000


class Torchrun:
    """Agents order failures on their own node only; a worker ended by the agent (-15) is never a cause."""

    needles: tuple[str, ...] = (
        "failed (exitcode", "closing signal", "forcefully exiting", "death signal", "got signal: ",
        "Root Cause (first observed failure)", "Failures:", "Worker group FAILED",
    )  # fmt: skip

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        if "Root Cause (first observed" in text:
            yield from _block(line, first=True)
        elif text.strip().startswith("Failures:"):
            yield from _block(line, first=False)
        elif found := _FAILED.search(text):
            yield _failed(found, line)
        elif found := _FORCED.search(text):
            fields = {"pid": int(found["pid"]), "signal": number_of(found["by"]), "forced": True}
            yield Event("launcher.killing", fields)
        elif found := _CLOSING.search(text):
            yield Event("launcher.killing", {"pid": int(found["pid"]), "signal": number_of(found["signal"])})
        elif found := _DEATH.search(text):
            yield Event("launcher.signal", {"signal": number_of(found["signal"]), "who": "agent"})
        elif found := _GOT.search(text):
            got: dict[str, Value] = {"signal": number_of(found["signal"]), "pid": int(found["pid"]), "who": "agent"}
            yield Event("launcher.signal", got)
        elif found := _RESTART.search(text):
            most, left = int(found["of"]), int(found["left"])
            yield Event("launcher.restart", {"attempt": most - left + 1, "of": most})

    def end(self) -> Iterable[Seen]:
        return ()


def _failed(found: re.Match[str], line: Line) -> Event:
    code = int(found["code"])
    fields: dict[str, Value] = {
        "local_rank": _number(found["local"]), "pid": _number(found["pid"]), "exitcode": code,
        "signal": of_exit_code(code), "first": True, "host": line.host,
    }  # fmt: skip
    return Event("launcher.child_failed", fields)


def _block(line: Line, *, first: bool) -> Iterator[Seen]:
    """The workers of one part of the block; a traceback in it becomes an exception of that rank."""
    entry: list[Line] = []
    for later in line.own(_BLOCK_LINES):
        text = later.text
        ends = _RULE.match(text) or "Root Cause (first observed" in text
        if (ends or _ENTRY.search(text)) and entry:
            yield from _worker(entry, first=first)
            entry = []
        if ends and not first:
            return
        if ends and "=" in text:
            return
        if _FIELD.match(text) or entry:
            entry.append(later)
    if entry:
        yield from _worker(entry, first=first)


def _worker(entry: list[Line], *, first: bool) -> Iterator[Seen]:
    said: dict[str, str] = {}
    for line in entry:
        found = _FIELD.match(line.text)
        if found and found["key"] not in said:
            said[found["key"]] = found["value"].strip()
    rank, code = _RANK.search(said.get("rank", "")), _CODE.search(said.get("exitcode", ""))
    if rank is None and code is None:
        return
    exitcode = int(code["code"]) if code else None
    named = _SIGNAL.search(said.get("traceback", ""))
    signal = int(named["number"]) if named else of_exit_code(exitcode or 0)
    ts_ns, clock = stamp_of(said.get("time", ""))
    host = said.get("host") or entry[0].host
    number = int(rank["rank"]) if rank else None
    fields: dict[str, Value] = {
        "rank": number, "local_rank": int(rank["local"]) if rank else None, "host": host,
        "pid": int(code["pid"]) if code else None, "exitcode": exitcode, "signal": signal,
        "error_file": said.get("error_file"), "time_ns": ts_ns, "first": first, "block": True,
    }  # fmt: skip
    ended = f"killed by {name_of(signal)}" if signal else f"exit code {exitcode}"
    text = f"rank {number if rank else '?'} on {host}: {ended} (torchrun: {'root cause' if first else 'failed'})"
    event = Event("launcher.child_failed", fields, number, host, ts_ns, clock, text)
    yield event
    raised = exception_in([line.text for line in entry]) if "Traceback" in said.get("traceback", "") else None
    if raised is not None:
        yield replace(raised, rank=number, host=host, ts_ns=ts_ns, clock=clock)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
