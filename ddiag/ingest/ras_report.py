"""One RAS report as decoded JSON: what it says happened, and how far the ranks came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddiag.ingest.flight_dump import Item, whole
from ddiag.ingest.logs.stamps import stamp_of
from ddiag.model.incident import Event, Seen, Standing, Value
from ddiag.model.naming import collective_op

_OK = (0, 7)
"""ncclSuccess and ncclInProgress."""
_ERRORS = {
    1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument", 5: "Invalid usage",
    6: "Remote process error",
}  # fmt: skip
Fields = dict[str, Value]
Ranks = Mapping[int, Item]
"""By rank in the communicator."""


def records(report: Item, number: int, source: str) -> Iterator[Seen]:
    """Records of the *number*-th report of a file, or of one monitored event."""
    ts_ns, clock = stamp_of(f"[{report.get('timestamp', '')}]")
    for event in _monitored(report) if isinstance(report.get("peer"), dict) else _reported(report):
        fields = {**event.fields, "report": number} if event.kind != "ras.peer" else event.fields
        yield Event(event.kind, fields, host=event.host, ts_ns=ts_ns, clock=clock, source=source)
    communicators = _communicators(report)
    places = _places(communicators)
    for one in communicators:
        yield from _standings(one, places, source)


def _monitored(report: Item) -> Iterator[Event]:
    process = _process(report["peer"], "cuda_devs")
    yield Event("ras.peer", {"event": str(report.get("event", "")), **process}, host=str(process["host"]) or None)


def _reported(report: Item) -> Iterator[Event]:
    communicators = _communicators(report)
    largest = max((_size(one) for one in communicators), default=0)
    for one in communicators:
        about: Fields = {"comm": _hash(one), "size": _size(one), "whole_job": _size(one) == largest}
        ranks, missing = _ranks(one.get("ranks")), _ranks(one.get("missing_ranks"))
        events = [*_mismatches(about, ranks), *_missing(about, missing), *_errors(about, ranks)]
        words = {"ras.mismatch": "MISMATCH", "ras.incomplete": "INCOMPLETE", "ras.error": "ERROR"}
        wrong: list[Value] = [word for kind, word in words.items() if any(event.kind == kind for event in events)]
        numbers: Fields = {"comms": 1, "ranks_per_comm": _size(one), "ranks_in_group": len(ranks)}
        yield Event("ras.status", {**about, **numbers, "status": _state(ranks), "errors": wrong or ["OK"]})
        yield from events
    about_ras = report.get("ras")
    timeouts = whole(about_ras.get("timeouts_count")) if isinstance(about_ras, dict) else None
    if timeouts:
        yield Event("ras.timeout", {"count": timeouts})


def _mismatches(about: Fields, ranks: Ranks) -> Iterator[Event]:
    """Counts apart from the most frequent one are named, as in the text report."""
    counts = {rank: _counts(one) for rank, one in ranks.items()}
    for op in sorted({op for found in counts.values() for op in found}):
        launched = {rank: found.get(op, 0) for rank, found in counts.items()}
        fewest, most = min(launched.values()), max(launched.values())
        if fewest < most:
            usual, others = Counter(launched.values()).most_common(1)[0]
            named: Fields = {str(rank): count for rank, count in launched.items() if count != usual}
            behind: list[Value] = [rank for rank, count in sorted(launched.items()) if count == fewest]
            said: Fields = {"launched": named, "others": others, "others_launched": usual, "behind": behind}
            yield Event("ras.mismatch", {**about, "op": collective_op(op) or op, **said, "lag": most - fewest})


def _missing(about: Fields, missing: Ranks) -> Iterator[Event]:
    if not missing:
        return
    listed: list[Value] = [*missing]
    yield Event("ras.incomplete", {**about, "missing": len(missing), "ranks": listed, "processes": _all(missing)})
    dead = {rank: one for rank, one in missing.items() if _status(one).get("considered_dead") is True}
    if dead:
        yield Event("ras.dead", {**about, "missing": len(dead), "ranks": [*dead], "processes": _all(dead)})


def _errors(about: Fields, ranks: Ranks) -> Iterator[Event]:
    for phase, key in (("init", "init_state"), ("async", "async_error")):
        codes = {rank: whole(_status(one).get(key)) for rank, one in ranks.items()}
        for code in sorted({code for code in codes.values() if code is not None and code not in _OK}):
            failed: list[Value] = [rank for rank, found in codes.items() if found == code]
            said: Fields = {"phase": phase, "error": _ERRORS.get(code, "Unexpected error"), "count": len(failed)}
            yield Event("ras.error", {**about, **said, "ranks": failed})


def _standings(one: Item, places: Mapping[tuple[str, int | None], int], source: str) -> Iterator[Standing]:
    """Calls launched by each rank, all operations together, under the job's ranks where these are known."""
    ranks = _ranks(one.get("ranks"))
    members = {rank: places.get(_place(found)) for rank, found in (ranks | _ranks(one.get("missing_ranks"))).items()}
    known = [rank for rank in members.values() if rank is not None]
    everybody = tuple(sorted(known)) if len(known) == _size(one) else None
    for rank, found in ranks.items():
        if members[rank] is not None:
            launched = sum(_counts(found).values())
            yield Standing(
                _hash(one), "ras", members[rank], ranks=everybody, last_enqueued=launched, source=source
            )  # fmt: skip


def _places(communicators: Sequence[Item]) -> dict[tuple[str, int | None], int]:
    """Host and GPU -> rank in the largest communicator, which is the job's."""
    largest = max(communicators, key=_size, default={})
    ranks = _ranks(largest.get("ranks")) | _ranks(largest.get("missing_ranks"))
    return {_place(one): rank for rank, one in ranks.items()}


def _place(rank: Item) -> tuple[str, int | None]:
    device = whole(rank.get("nvml_dev"))
    return str(rank.get("host", "")), whole(rank.get("cuda_dev")) if device is None else device


def _state(ranks: Ranks) -> str:
    states = [_status(one) for one in ranks.values()]
    if any(state.get("abort_flag") is True for state in states):
        return "ABORT"
    if any(state.get("finalize_called") is True or state.get("destroy_flag") is True for state in states):
        return "FINALIZE"
    return "INIT" if any(whole(state.get("init_state")) not in (0, None) for state in states) else "RUNNING"


def _communicators(report: Item) -> list[Item]:
    found = report.get("communicators")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _size(one: Item) -> int:
    return whole(one.get("size")) or 0


def _hash(one: Item) -> str:
    return str(one.get("hash", "")).removeprefix("0x")


def _ranks(found: Any) -> dict[int, Item]:
    ranks = {}
    for one in found if isinstance(found, list) else ():
        rank = whole(one.get("rank")) if isinstance(one, dict) else None
        if rank is not None:
            ranks[rank] = one
    return ranks


def _counts(rank: Item) -> dict[str, int]:
    found = rank.get("collective_counts")
    return {str(op): whole(count) or 0 for op, count in found.items()} if isinstance(found, dict) else {}


def _status(rank: Item) -> Item:
    found = rank.get("status")
    return found if isinstance(found, dict) else rank


def _all(ranks: Ranks) -> list[Value]:
    return [_process(one, "cuda_dev") for one in ranks.values()]


def _process(found: Item, devices: str) -> Fields:
    listed = found.get(devices)
    gpus: list[Value] = [whole(gpu) for gpu in (listed if isinstance(listed, list) else [listed])]
    return {"pid": whole(found.get("pid")), "host": str(found.get("host", "")), "gpus": gpus}
