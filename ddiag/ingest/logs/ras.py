"""What ``ncclras`` prints (NCCL 2.24 and later; RCCL the same): who launched how much, who did not answer, who is dead.

Ranks are those of the communicator; where it has as many ranks as the job has GPUs they are the job's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile

from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.ras_blocks import errors, mismatches, missing_ranks, process, statuses
from ddiag.ingest.logs.ras_counts import Counts, counts_of, reached
from ddiag.model.incident import Event, Seen, Value
from ddiag.model.naming import collective_op

_SUMMARY = re.compile(r"^\s*\d+(?:-\d+)?\s+\d+(?:-\d+)?\s+\d+(?:-\d+)?\s+\d+\s+(?P<gpus>\d+)\s*$")
_ROW = re.compile(
    r"^\s*(?P<group>\d+)\s+(?P<comms>\d+)\s+(?P<nodes>\d+)\s+\d+(?:-\d+)?\s+(?P<size>\d+)\s+(?P<ranks>\d+)\s+"
    r"(?P<status>[A-Z]+)\s+(?P<errors>[A-Z]+(?:,\s*[A-Z]+)*)\s*$"
)
_ITEM = re.compile(r"#(?P<group>\d+)-\d+ \((?P<comm>[0-9a-f]{4,16})\) (?P<kind>MISMATCH|INCOMPLETE|ERROR)\b")
_DETAIL = re.compile(
    r"Communicator ranks have|Missing communicator data from|The missing rank|\bRank \d+ |\d+ ranks (?:have|reported)"
    r"|errors? on \d+ rank|could not find information"
)
_MISSING = re.compile(r"Missing communicator data from (?P<count>\d+) job process")
_DEAD = re.compile(r"(?P<count>\d+) job process(?:es are| is) considered dead")
_TIMEOUT = re.compile(r"Encountered (?P<count>\d+) communication timeouts? while gathering")
_MONITORED = re.compile(r"(?P<event>PEER_[A-Z_]+): Process ")
_BLOCK_LINES = 20_000


class Ras:
    """Reports, several of them when the file holds several."""

    needles: tuple[str, ...] = (
        "Job summary", "Communicators...", ") MISMATCH", ") INCOMPLETE", ") ERROR", "Missing communicator data from",
        "considered dead", "communication timeout", "PEER_",
    )  # fmt: skip

    def __init__(self) -> None:
        self._report = 0
        self._gpus: int | None = None
        self._sizes: dict[str, int] = {}

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        if "Job summary" in text:
            self._begin(line)
        elif "Communicators..." in text:
            yield from self._table(line)
        elif item := _ITEM.search(text):
            yield from self._item(item, line)
        elif missing := _MISSING.search(text):
            yield self._event("ras.incomplete", {"comm": "", **_processes(line, int(missing["count"]))})
        elif dead := _DEAD.search(text):
            yield self._event("ras.dead", _processes(line, int(dead["count"])))
        elif timeout := _TIMEOUT.search(text):
            yield self._event("ras.timeout", {"count": int(timeout["count"])})
        elif (seen := _MONITORED.search(text)) and (found := process(text)):
            yield Event("ras.peer", {"event": seen["event"], **found}, host=str(found["host"]))

    def end(self) -> Iterable[Seen]:
        return ()

    def _event(self, kind: str, fields: dict[str, Value]) -> Event:
        return Event(kind, {**fields, "report": self._report})

    def _begin(self, line: Line) -> None:
        self._report += 1
        self._sizes = {}
        rows = (_SUMMARY.search(later.text) for later in line.following(8))
        self._gpus = next((int(row["gpus"]) for row in rows if row), None)

    def _table(self, line: Line) -> Iterator[Seen]:
        for later in takewhile(lambda one: one.text.strip() != "Errors", line.following(_BLOCK_LINES)):
            row = _ROW.search(later.text)
            if row is None:
                continue
            size = self._sizes[row["group"]] = int(row["size"])
            said = [word.strip() for word in row["errors"].split(",")]
            numbers: dict[str, Value] = {name: int(row[name]) for name in ("group", "comms", "nodes")}
            ranks: dict[str, Value] = {"ranks_per_comm": size, "ranks_in_group": int(row["ranks"])}
            state: dict[str, Value] = {"status": row["status"], "errors": [*said], "job_gpus": self._gpus}
            yield self._event("ras.status", numbers | ranks | state)
            if said == ["OK"] and numbers["comms"] == 1 and size == self._gpus:
                yield reached(f"ras #{row['group']}", size)

    def _item(self, item: re.Match[str], line: Line) -> Iterator[Seen]:
        """One communicator with something to tell."""
        size = self._sizes.get(item["group"])
        whole = size is not None and size == self._gpus
        about: dict[str, Value] = {"comm": item["comm"], "size": size, "whole_job": whole}
        texts = list(_block(line))
        if item["kind"] == "INCOMPLETE":
            yield self._event("ras.incomplete", {**about, "processes": [], **missing_ranks(texts)})
        elif item["kind"] == "ERROR":
            yield from (self._event("ras.error", {**about, **error}) for error in errors(texts))
        else:
            yield from self._mismatch(about, size if whole else None, texts)

    def _mismatch(self, about: dict[str, Value], job_size: int | None, texts: list[str]) -> Iterator[Seen]:
        found: list[Counts] = []
        for op, part in mismatches(texts):
            if op == "status":
                yield self._event("ras.status_mismatch", {**about, **statuses(part)})
                continue
            counts = counts_of(part, about["size"] if isinstance(about["size"], int) else None)
            found.append(counts)
            yield self._event("ras.mismatch", {**about, "op": collective_op(op) or "", **counts.fields()})
        if job_size is not None and found:
            for rank in sorted(set.intersection(*(set(counts.of_rank) for counts in found))):
                yield reached(str(about["comm"]), job_size, rank, sum(counts.of_rank[rank] for counts in found))


def _block(line: Line) -> Iterator[str]:
    """The lines of one item: up to the first that says something else."""
    texts = (later.text for later in line.following(_BLOCK_LINES))
    return takewhile(lambda text: not text.strip() or (_DETAIL.search(text) and not _ITEM.search(text)), texts)


def _processes(line: Line, count: int) -> dict[str, Value]:
    found: list[Value] = []
    for later in line.following(_BLOCK_LINES):
        one = process(later.text)
        if one is None:
            break
        found.append(one)
    return {"missing": count, "processes": found, "ranks": []}
