"""A hang as the supervisor captured it (``hang/*/capture.json``): calls, stacks and process states of one node's ranks.

The newest capture of a run counts. One whose ranks went on afterwards only says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import polars as pl

from ddiag.ingest import flight
from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.recorded_calls import flight_rows, flight_table, inferred, status_rows, status_table
from ddiag.ingest.recorded_guess import complete
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.trace import UnusableError
from ddiag.model.incident import EPOCH, Event, NodeFact, Seen, Stack
from ddiag.model.run import Run
from ddiag.schema.hang import CAPTURE_KIND
from ddiag.schema.phases import FORMAT_VERSION

NAME = "hang_capture"
_READ_BYTES = 16 << 20
_MAIN = "MainThread"
_CALLS = ("flight", "flight_status")
_RAW = "hang_capture"
"""The whole capture, until those of all nodes are there."""
_STOPPED, _UNINTERRUPTIBLE = "tT", "D"
_STATE_WORDS = {"R": "running", "S": "sleeping", "D": "waiting in the kernel", "T": "stopped", "t": "stopped"}
_COPIED = (
    *("pid", "local_rank", "state", "phase", "phase_s", "step", "quiet_s", "limit_s", "stuck", "wchan", "cpu_share"),
    "threads",
)


_OF_DEVICES = {
    "util": ("gpu.utilization_pct", 1.0),
    "power_w": ("gpu.power_w", 1.0),
    "used_bytes": ("gpu.memory_used_mib", float(1 << 20)),
}
"""Of a sample of devices: the facts that tools tell as well, and what their unit is worth in the sample's."""


def matches(head: bytes, _name: str) -> bool:
    return head.lstrip().startswith(b'{"kind":"' + CAPTURE_KIND.encode())


def read(source: Source, text: PlainText) -> Clues:
    """Raises UnusableError for one that was cut or comes from a newer ddiag."""
    parts = []
    while chunk := text.read(_READ_BYTES):
        parts.append(chunk)
    try:
        found = json.loads(b"".join(parts))
    except ValueError as error:
        raise UnusableError(f"a capture of ddiag that is cut short ({error}): capture again") from error
    if found.get("format_version", 0) > FORMAT_VERSION:
        raise UnusableError(f"a capture of format {found['format_version']}: use a newer ddiag")
    return _clues(source, found)


def _clues(source: Source, found: dict[str, Any]) -> Clues:
    """As it is: what calls mean is known only beside the captures of the other nodes (:func:`settled`)."""
    kept = pl.DataFrame({"json": [json.dumps(found)]})
    world = int(found["world_size"]) or None
    return Clues(source, NAME, {_RAW: kept}, host=str(found["host"]), world_size=world, read=len(found["ranks"]))


def settled(clues: Sequence[Clues]) -> list[Clues]:
    """*clues* with the tables of the newest captures, which are read together."""
    kept = _newest(clues)
    found = {id(one): json.loads(one.tables[_RAW]["json"][0]) for one in kept if one.kind == NAME}
    hanging = [rank for one in found.values() if not one.get("over_ns") for rank in one["ranks"]]
    guessed = complete(hanging)
    status = _status_of([(one, found[id(one)]) for one in kept if id(one) in found])
    told = [_told(one, found[id(one)], status, guessed) if id(one) in found else one for one in kept]
    return _one_origin(told, {rank["rank"] for rank in hanging})


def _one_origin(clues: Sequence[Clues], hanging: Set[int]) -> list[Clues]:
    """Flight Recorder and rings number calls differently: dumps count when they are there of all ranks, else rings."""
    dumped = {one.rank for one in clues if one.kind == flight.NAME}
    if not hanging or not dumped:
        return list(clues)
    unwanted = NAME if hanging <= dumped else flight.NAME
    return [_without_calls(one) if one.kind == unwanted else one for one in clues]


def _without_calls(one: Clues) -> Clues:
    return replace(one, tables={name: table for name, table in one.tables.items() if name not in _CALLS})


def _status_of(found: Sequence[tuple[Clues, dict[str, Any]]]) -> pl.DataFrame:
    return status_table(
        [
            {**row, "host": capture["host"], "source": one.source.label}
            for one, capture in found
            if not capture.get("over_ns")
            for rank in capture["ranks"]
            for row in status_rows(rank)
        ]
    )


def _told(one: Clues, found: dict[str, Any], status: pl.DataFrame, guessed: int) -> Clues:
    if found.get("over_ns"):
        return replace(one, tables=to_tables(_over(one.source, found)))
    calls = flight_table(row for rank in found["ranks"] for row in flight_rows(rank, _user_frame(rank)))
    tables = {"flight": inferred(calls, status), "flight_status": status.filter(pl.col("source") == one.source.label)}
    tables = {name: table for name, table in tables.items() if table.height}
    note = f"{guessed} rank(s) wait in calls that were not recorded in this step: told from their stacks"
    return replace(one, tables={**to_tables(_records(one.source, found)), **tables}, notes=(note,) if guessed else ())


def captured(clues: Sequence[Clues]) -> bool:
    """A hang was captured whose ranks did not go on, or there are dumps of torch's Flight Recorder."""
    return any(one.kind in (NAME, flight.NAME) and "flight_status" in one.tables for one in clues)


def without_ends(run: Run) -> Run:
    """*run* without what the rings held at the end of the job: captures and dumps tell of the hang itself."""
    tables = {name: table for name, table in run.tables.items() if name not in _CALLS}
    return replace(run, tables=tables)


def _newest(clues: Sequence[Clues]) -> list[Clues]:
    """*clues* without captures that a later one of the same run replaces."""
    numbers = {one.source.label: _number(one) for one in clues if one.kind == NAME}
    last: dict[str, int] = {}
    for label, number in numbers.items():
        last[_run_of(label)] = max(number, last.get(_run_of(label), 0))
    return [one for one in clues if one.kind != NAME or _number(one) == last[_run_of(one.source.label)]]


def _number(one: Clues) -> int:
    """Of the folder the capture lies in; 0 for a file that was taken out of it."""
    last = one.source.label.replace("\\", "/").rpartition("/")[0].rpartition("-")[2]
    return int(last) if last.isdigit() else 0


def _run_of(label: str) -> str:
    return label.replace("\\", "/").rpartition("/")[0].rpartition("/")[0]


# -- records -------------------------------------------------------------------------------------------------------


def _over(source: Source, found: dict[str, Any]) -> Iterator[Seen]:
    ranks = [one["rank"] for one in found["ranks"] if one.get("stuck")]
    began = max((one["quiet_s"] for one in found["ranks"] if one.get("stuck")), default=0.0)
    seconds = round(began + (found["over_ns"] - found["t"]) / 1e9, 1)
    fields: dict[str, Any] = {"ranks": ranks, "seconds": seconds}
    text = f"{len(ranks)} rank(s) made no progress for {seconds:g} s and went on"
    yield Event("process.stall_over", fields, None, found["host"], found["over_ns"], EPOCH, text, source.label)


def _records(source: Source, found: dict[str, Any]) -> Iterator[Seen]:
    for one in found["ranks"]:
        for kind, fields, text in _events(one):
            yield Event(kind, fields, one["rank"], found["host"], found["t"], EPOCH, text, source.label)
        yield from _stacks(source, found, one)
    for index, device in enumerate(found.get("devices", ())):
        yield from _device(source, found, index, device)


def _device(source: Source, found: dict[str, Any], index: int, device: dict[str, Any]) -> Iterator[NodeFact]:
    """A device that is busy at full use and little power spins in a communication kernel."""
    for name, (key, unit) in _OF_DEVICES.items():
        value = device.get(name)
        if isinstance(value, (int, float)):
            number = value / unit
            yield NodeFact(key, f"{number:g}", number, found["host"], f"gpu{index}", found["t"], source.label)


def _events(one: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    rank, pid, state = one["rank"], one["pid"], one["state"]
    if one["closed"] and not one.get("code") and "signal" not in one:
        yield "process.finished", {"pid": pid}, f"rank {rank} (pid {pid}) has ended in good order"
        return
    if one["closed"] or not state or state in "ZX":
        ended = f"killed by signal {one['signal']}" if "signal" in one else f"exit code {one.get('code', 'unknown')}"
        fields = {"pid": pid, "local_rank": one["local_rank"], "exitcode": one.get("code"), "signal": one.get("signal")}
        yield "process.gone", fields, f"rank {rank} (pid {pid}) is gone: {ended}"
        return
    gil = any(stack["thread"] == _MAIN and stack["state"] == "gil" for stack in one["stacks"])
    at = f"in {one['phase']} of step {one['step']}" if one["phase"] != "none" else f"in step {one['step']}"
    doing = _STATE_WORDS.get(state, f"state {state}")
    text = f"rank {rank} (pid {pid}) {at}, {doing}, no progress for {one['quiet_s']:.1f} s"
    seen = {"gil": gil} if one["stacks"] else {"no_stacks": one.get("no_stacks", "")}
    yield "process.state", {**{key: one.get(key) for key in _COPIED}, **seen}, text
    if state in _STOPPED:
        text = f"rank {rank} (pid {pid}) is stopped: nothing of it runs until it gets SIGCONT"
        yield "process.stopped", {"pid": pid, "tracer": one.get("tracer", 0)}, text
    elif state == _UNINTERRUPTIBLE:
        fields = {"pid": pid, "wchan": one["wchan"], "functions": one.get("kernel", [])}
        yield "process.uninterruptible", fields, f"rank {rank} (pid {pid}) waits in the kernel in {one['wchan']}"


def _stacks(source: Source, found: dict[str, Any], one: dict[str, Any]) -> Iterator[Stack]:
    common = {
        "rank": one["rank"],
        "host": found["host"],
        "pid": one["pid"],
        "ts_ns": found["t"],
        "source": source.label,
    }
    stopped = one["state"] if one["state"] and one["state"] in _STOPPED else ""
    for stack in one["stacks"]:
        state = stopped or stack["state"]
        yield Stack(tuple(stack["frames"]), thread=stack["thread"], state=state, kind=stack["kind"], **common)
    if one.get("kernel") and one["state"] == _UNINTERRUPTIBLE:
        yield Stack(tuple(one["kernel"]), thread=_MAIN, state=one["state"], kind="kernel", **common)


def _user_frame(one: dict[str, Any]) -> str | None:
    """The innermost frame of the main thread that is nobody's library."""
    main: list[str] = next((stack["frames"] for stack in one["stacks"] if stack["thread"] == _MAIN), [])
    return next((frame for frame in main if is_users(frame)), None)


def is_users(frame: str) -> bool:
    return ".py:" in frame and not any(part in frame for part in _LIBRARIES)


_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen")
