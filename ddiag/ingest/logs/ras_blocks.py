"""The details that RAS prints below a communicator: who is missing, in which state ranks are, what failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddiag.model.incident import Value

_DIFFERENT = re.compile(r"Communicator ranks have different (?P<what>\w+)")
_RANK = re.compile(r"\bRank (?P<rank>\d+)\b")
_LISTED = re.compile(r"The missing ranks?: (?P<ranks>[\d, -]+)")
_MISSING = re.compile(r"Missing communicator data from (?P<count>\d+) rank")
_PROCESS = re.compile(r"Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<gpus>[\d,]+)")
_FAILED = re.compile(r"(?P<phase>Initialization|Asynchronous) errors? on \d+ rank")
_REPORTED = re.compile(r"(?:(?P<count>\d+) ranks|Rank (?P<rank>\d+)) reported (?P<error>[A-Z][\w ]+?)\s*(?: -- .*)?$")
_HAS_STATUS = re.compile(r"(?:(?P<count>\d+) ranks have|Rank (?P<rank>\d+) has) status (?P<status>[A-Z]+)")


def mismatches(texts: list[str]) -> list[tuple[str, list[str]]]:
    """(what differs, lines): ``collective`` (before NCCL 2.26), an operation such as ``AllReduce``, or ``status``."""
    parts: list[tuple[str, list[str]]] = []
    for text in texts:
        if head := _DIFFERENT.search(text):
            parts.append((head["what"], []))
        elif parts and text.strip():
            parts[-1][1].append(text)
    return parts


def missing_ranks(texts: list[str]) -> dict[str, Value]:
    """How many ranks are missing, and those that are named."""
    ranks: list[Value] = []
    count = 0
    for text in texts:
        if found := _MISSING.search(text):
            count = int(found["count"])
        elif found := _LISTED.search(text):
            ranks += _ranks(found["ranks"])
        elif found := _RANK.search(text):
            ranks.append(int(found["rank"]))
    return {"missing": count, "ranks": ranks}


def _ranks(text: str) -> list[int]:
    """``21``, ``3, 4`` and ``3-5``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found += range(int(first), int(last if last.isdigit() else first) + 1)
    return found


def statuses(texts: list[str]) -> dict[str, Value]:
    """How many ranks are in each state, and those that are named."""
    how_many: dict[str, Value] = {}
    ranks: dict[str, list[Value]] = {}
    status = ""
    for text in texts:
        if found := _HAS_STATUS.search(text):
            status = found["status"]
            how_many[status] = int(found["count"] or 1)
            ranks[status] = [int(found["rank"])] if found["rank"] else []
        elif status and (named := _RANK.search(text)):
            ranks[status].append(int(named["rank"]))
    return {"statuses": how_many, "ranks": {key: [*value] for key, value in ranks.items()}}


def errors(texts: list[str]) -> Iterator[dict[str, Value]]:
    """Each error that ranks report, with how many and which of them."""
    phase = ""
    found: list[tuple[str, str, int, list[Value]]] = []
    for text in texts:
        if head := _FAILED.search(text):
            phase = "init" if head["phase"] == "Initialization" else "async"
        elif told := _REPORTED.search(text):
            ranks: list[Value] = [int(told["rank"])] if told["rank"] else []
            found.append((phase, told["error"], int(told["count"] or 1), ranks))
        elif found and (named := _RANK.search(text)):
            found[-1][3].append(int(named["rank"]))
    for when, error, count, ranks in found:
        yield {"phase": when, "error": error, "count": count, "ranks": ranks}


def process(text: str) -> dict[str, Value] | None:
    """``Process 3487984 on node 172.16.64.213 managing GPU 5`` (or ``GPUs 0,1``)."""
    found = _PROCESS.search(text)
    if found is None:
        return None
    gpus: list[Value] = [int(gpu) for gpu in found["gpus"].split(",") if gpu]
    return {"pid": int(found["pid"]), "host": found["host"], "gpus": gpus}
