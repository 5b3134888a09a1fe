"""The watchdog of ProcessGroupNCCL, torch 1.11 to 2.13: time-outs, how far a group came, and why a thread ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddiag.ingest.logs.c10 import HEADER, Tag, rank_of, tag_in
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

_TIMEOUT = re.compile(
    r"SeqNum=(?P<seq>\d+), ?OpType=(?P<op>\w+)(?:, ?TensorShape=\[(?P<shape>[^\]]*)\])?"
    r"(?:, ?NumelIn=(?P<nin>\d+), ?NumelOut=(?P<nout>\d+))?, ?Timeout\(ms\)=(?P<to>\d+)\)"
    r"(?: ran for (?P<ran>\d+) milliseconds before timing out| timed out in (?P<bw>blocking wait|call to wait))?"
)
_STATUS = re.compile(
    r"(?:Timeout at NCCL work|detected by watchdog at work(?: sequence id)?): (?P<at>\d+),? (?:PG status: )?"
    r"last enqueued (?:NCCL )?work: (?P<enq>-?\d+), last completed (?:NCCL )?work: (?P<done>-?\d+)"
)
_SIGNALLED = re.compile(r"Last enqueued NCCL work: (?P<enq>-?\d+), last completed NCCL work: (?P<done>-?\d+)")
_ENDED = re.compile(r"watchdog thread terminated with exception: (?P<error>.+)")
_STACK = re.compile(r"Stack trace of the failed collective: ?")
_FRAME = re.compile(r"#(\d+) (?P<name>.+?) from (?P<file>\S+):(?P<line>\d+)")
_DUMP = re.compile(
    r"Received a (?:global )?(?:dump signal|timeout)(?: due to .*?)? from\s+"
    r"(?:rank (?P<rank>\d+)|another rank|this local rank)|"
    r"Observed flight recorder dump signal from another rank"
)
_REPEATED = re.compile(r"what\(\):|terminated with exception")
_SAME_RECORD = 60
"""Lines in which the tag of a time-out's group is looked for."""
OPS = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather", "ALLGATHER_COALESCED": "all_gather", "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
    "RECVANYSOURCE": "recv",
}  # fmt: skip
"""Words of c10d that are not just ours in capitals."""


def op_word(raw: str) -> str:
    return OPS.get(raw, raw.lower())


class Watchdog:
    """Needs the lines of all ranks; says each time-out once, however often it is quoted."""

    needles: tuple[str, ...] = (
        "SeqNum=", "WorkNCCL(", "Watchdog caught", "detected by watchdog", "Timeout at NCCL work", "last enqueued",
        "watchdog thread terminated", "Stack trace of the failed collective:", "dump signal", "Received a global",
    )  # fmt: skip

    def __init__(self) -> None:
        self._known: set[tuple[object, ...]] = set()
        self._default: Tag | None = None
        """The group of all ranks, as this file names it."""
        self._until = 0

    def line(self, line: Line) -> Iterator[Seen]:
        if line.number <= self._until:
            return
        yield from self._timeout(line)
        if found := self._found(line, _STATUS, "last enqueued", "by watchdog at", "Timeout at NCCL work"):
            tag = tag_in(line.text)
            counts: dict[str, Value] = {
                "at": int(found["at"]),
                "last_enqueued": int(found["enq"]),
                "last_completed": int(found["done"]),
            }
            rank = rank_of(line, tag)
            if self._is_new(rank, "status", tag.group, *counts.values()):
                yield Event("c10d.pg_status", {**tag.fields, **counts}, rank=rank)
        yield from self._exception(line)
        if _STACK.search(line.text):
            yield from self._stack(line)
        if found := _DUMP.search(line.text):
            from_rank = int(found["rank"]) if found["rank"] else None
            tag = tag_in(line.text)
            yield Event("c10d.dump_signal", {"from_rank": from_rank}, rank=rank_of(line, tag))
            if said := _SIGNALLED.search(line.text):
                reached: dict[str, Value] = {"last_enqueued": int(said["enq"]), "last_completed": int(said["done"])}
                yield Event("c10d.pg_status", {**tag.fields, "at": None, **reached}, rank=rank_of(line, tag))

    def end(self) -> Iterable[Seen]:
        return ()

    def _timeout(self, line: Line) -> Iterator[Seen]:
        found = self._found(line, _TIMEOUT, "SeqNum=", "Watchdog caught", "WorkNCCL(")
        if found is None:
            return
        if line.rank is None and HEADER.search(line.text) is None:
            line = _head_of(line)
        tag = self._group_of(line, tag_in(line.text))
        call = (int(found["seq"]), found["op"], found["nin"], found["nout"])
        rank = rank_of(line, tag)
        again = _REPEATED.search(line.text) and any((who, *call) in self._known for who in (rank, ("in", tag.rank)))
        if again or not self._is_new(rank, *call, tag.group):
            return
        self._known |= {(rank, *call), (("in", tag.rank), *call)}
        fields: dict[str, Value] = {
            **tag.fields,
            "seq": int(found["seq"]),
            "op": op_word(found["op"]),
            "op_raw": found["op"],
            "numel_in": _number(found["nin"]),
            "numel_out": _number(found["nout"]),
            "timeout_ms": int(found["to"]),
            "ran_ms": _number(found["ran"]),
            "blocking": bool(found["bw"]),
        }
        if found["shape"]:
            fields["shape"] = found["shape"]
        yield Event("c10d.watchdog_timeout", fields, rank=rank)

    def _exception(self, line: Line) -> Iterator[Seen]:
        found = _ENDED.search(line.text)
        if found is None:
            return
        tag, error = tag_in(line.text), found["error"].strip()
        if "Watchdog caught" in error or "collective operation timeout" in error or "SeqNum=" in error:
            return
        rank = rank_of(line, tag)
        if self._is_new(rank, "exception", error[:80]):
            frames = [later.text.strip() for later in line.following(12) if later.text.startswith("frame #")]
            yield Event("c10d.watchdog_exception", {**tag.fields, "error": error, "frames": list(frames)}, rank=rank)

    def _stack(self, line: Line) -> Iterator[Seen]:
        frames: list[Value] = []
        for later in line.own(80):
            found = _FRAME.search(later.text)
            if found is None:
                if frames or later.text.strip():
                    break
                continue
            frames.append(f"{found['name']} ({found['file']}:{found['line']})")
        if frames:
            tag = tag_in(line.text)
            yield Event("c10d.collective_stack", {"frames": frames, **tag.fields}, rank=rank_of(line, tag))

    def _found(self, line: Line, pattern: re.Pattern[str], *hints: str) -> re.Match[str] | None:
        """*pattern* in *line*, joined with what a terminal cut off where one of *hints* is there and the end is not."""
        found = pattern.search(line.text)
        if _is_whole(found) or not any(hint in line.text for hint in hints):
            return found
        text = line.text
        for later in line.following(6):
            if HEADER.search(later.text) or later.rank is not None:
                break
            text += later.raw
            longer = pattern.search(text)
            if longer is not None and (found is None or _is_whole(longer)):
                found, self._until = longer, later.number
            if _is_whole(longer):
                break
        return found

    def _group_of(self, line: Line, tag: Tag) -> Tag:
        """The group of a time-out line, which says it only in the lines after it (torch >= 2.3)."""
        if tag.group:
            return tag
        for later in line.own(_SAME_RECORD):
            said = tag_in(later.text)
            if said.group and said.rank == tag.rank:
                self._default = said if said.is_default else self._default
                return said
            if "Watchdog caught" in later.text and said.rank == tag.rank:
                break
        if self._default and line.rank == tag.rank:
            return Tag(self._default.group, self._default.desc, tag.rank)
        return tag

    def _is_new(self, *key: object) -> bool:
        if key in self._known:
            return False
        self._known.add(key)
        return True


def _head_of(line: Line) -> Line:
    """The line with the header of a message that a terminal cut before *line*; else *line*."""
    for earlier in line.preceding(3):
        if HEADER.search(earlier.text) or earlier.rank is not None:
            cut = "WorkNCCL(" not in earlier.text and "SeqNum=" not in earlier.text
            return replace(line, text=earlier.text + line.text, rank=earlier.rank) if cut else line
    return line


def _is_whole(found: re.Match[str] | None) -> bool:
    """Whether the call is followed by how it ended."""
    return found is not None and bool({"ran", "bw"} - found.groupdict().keys() or found["ran"] or found["bw"])


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
