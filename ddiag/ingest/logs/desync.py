"""The desync report (TORCH_NCCL_DESYNC_DEBUG=1) and the fingerprints of TORCH_DISTRIBUTED_DEBUG=DETAIL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.c10 import rank_number, ranks_in
from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.watchdog import op_word
from ddiag.model.incident import Event, Seen, Value

_NEVER = re.compile(r"ranks? \[(?P<ranks>[\d, ]+)\] are the lagging ranks.*[Nn]ever joined any collectives")
_LISTED = re.compile(r"the lagging/dead/mismatched ranks that caused the desync are")
_JOINED = re.compile(r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<seq>\d+)")
_FINISHED = re.compile(r"\[(?P<ranks>[\d, ]+)\] finished collective #\d+, but didn't join collective #(?P<seq>\d+)")
_STATE = re.compile(r"#(?P<seq>\d+) (?P<state>started|finished) ranks")
_RANKS = re.compile(r"\[(?P<ranks>[\d, ]+)\] (?:started|finished) (?P<op>\w+)")
_AT = re.compile(r"Timeout at collective: (?P<op>\w+), #(?P<seq>\d+)")
_REPORT_LINES = 400

_SIDE = (
    r"Rank (?P<rank{n}>\d+) is running (?:inconsistent )?collective: ?CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq{n}>\d+),? ?)?OpType=(?P<op{n}>\w+?)(?=[,)])"
    r"(?:,? ?TensorShape=\[(?P<shape{n}>[^\]]*)\])?"
    r"(?:,? ?TensorDtypes=(?P<dtype{n}>\w+))?"
)
_ONE = re.compile(_SIDE.format(n=1))
_TWO = re.compile(r"but " + _SIDE.format(n=2))
_ASPECTS = re.compile(r"Collectives differ in the following aspects:\s*(?P<what>.+)")


class Desync:
    """Reports say which ranks did not come; every rank prints the same one."""

    needles: tuple[str, ...] = (
        "To our best knowledge",
        "To our best knowlege",
        "lagging ranks",
        "lagging/dead/mismatched",
    )

    def __init__(self) -> None:
        self._known: set[str] = set()

    def line(self, line: Line) -> Iterator[Seen]:
        if found := line.searched(_NEVER, 3):
            yield from self._once({"never_joined": _values(found["ranks"]), "lagging": []}, line)
        elif _LISTED.search(line.text):
            yield from self._once(_report(line), line)

    def end(self) -> Iterable[Seen]:
        return ()

    def _once(self, fields: dict[str, Value], line: Line) -> Iterator[Seen]:
        if (key := repr(fields)) not in self._known:
            self._known.add(key)
            yield Event("c10d.desync", fields)


def _report(line: Line) -> dict[str, Value]:
    lagging: set[int] = set()
    at: dict[str, Value] = {}
    snapshot: dict[str, dict[str, Value]] = {"started": {}, "finished": {}}
    state, seq = "", ""
    for later in line.following(_REPORT_LINES):
        text = later.text
        if found := _JOINED.search(text) or _FINISHED.search(text):
            lagging.update(ranks_in(found["ranks"]))
            at.setdefault(found["seq"], _values(found["ranks"]))
        elif found := _STATE.search(text):
            state, seq = found["state"], found["seq"]
        elif state and (found := _RANKS.search(text)):
            snapshot[state][seq] = _values(found["ranks"])
        elif "Snapshot of ranks" not in text and text.strip() and not text[:1].isspace():
            break
    fields: dict[str, Value] = {"lagging": [*sorted(lagging)], "never_joined": [], "did_not_join": at}
    return {**fields, **snapshot}


def _values(text: str) -> list[Value]:
    return [*ranks_in(text)]


class Fingerprint:
    """What two ranks were doing at once, as DETAIL compares it. No comma stands before OpType without a tensor."""

    needles: tuple[str, ...] = (
        "CollectiveFingerPrint(",
        "running inconsistent collective",
        "Detected mismatch between collectives",
    )

    def __init__(self) -> None:
        self._until = 0

    def line(self, line: Line) -> Iterator[Seen]:
        if line.number <= self._until:
            return
        text = line.text
        for later in line.following(5):
            if _ONE.search(text) and (_TWO.search(text) or "but Rank" not in text):
                break
            text += later.raw
            self._until = later.number
        one, two = _ONE.search(text), _TWO.search(text)
        if one is None:
            return
        sides = [one, *([two] if two else [])]
        aspects = _ASPECTS.search(text)
        fields: dict[str, Value] = {
            "ranks": [rank_number(_of(side, "rank")) for side in sides],
            "ops": [op_word(_of(side, "op")) for side in sides],
            "seqs": [int(seq) if (seq := _of(side, "seq")) else None for side in sides],
            "shapes": [_of(side, "shape") for side in sides],
            "dtypes": [_of(side, "dtype") for side in sides],
            "differ": aspects["what"].strip() if aspects else "",
        }
        yield Event("c10d.fingerprint_mismatch", fields)

    def end(self) -> Iterable[Seen]:
        return ()


def _of(side: re.Match[str], name: str) -> str:
    return side.groupdict().get(f"{name}1") or side.groupdict().get(f"{name}2") or ""
