"""How far the ranks of a failed job came in each process group, from what their rings held at the end.

Without a capture of the hang (:mod:`ddiag.ingest.recorded_hang`) this is what tells who did not come, or called
something else. A call that failed because its peers went away counts as one that never ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from ddiag.ingest.recorded_calls import flight_rows, flight_table, inferred, status_rows, status_table
from ddiag.ingest.recorded_choice import Job
from ddiag.ingest.recorded_guess import WHOLE_TIERS
from ddiag.ingest.recorded_process import Placed, Process
from ddiag.ingest.rings import Records
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import NO_DTYPE

_NEWEST, _MOST_UNFINISHED = 12, 64
_POINT_TO_POINT = (int(Op.SEND), int(Op.RECV))
_OPS = {int(op): op.name.lower() for op in Op}


def unfinished_tables(job: Job, placed: Sequence[Placed]) -> dict[str, pl.DataFrame]:
    """``flight`` and ``flight_status``; nothing unless the job failed with calls that never ended."""
    manifest = job.manifest
    if manifest is None or not manifest.exit_code or manifest.asked_to_end:
        return {}
    if not all(_saw_the_end(one.process) for one in placed):
        return {}  # who is not seen in a call may well have been in it
    told = [{"rank": one.process.rank, "groups": _groups(one)} for one in placed]
    flight = flight_table([row for one in told for row in flight_rows(one, None)])
    if flight.filter(pl.col("state") != "completed").is_empty():
        return {}
    sources = [one.process.sources.label for one in placed]
    status = status_table(
        [{**row, "source": source} for one, source in zip(told, sources, strict=True) for row in status_rows(one)]
    )
    return {"flight": inferred(flight, status), "flight_status": status}


def _groups(one: Placed) -> list[dict[str, Any]]:
    """As in a capture (:mod:`ddiag.schema.hang`)."""
    process = one.process
    records = process.records
    calls = records[(records["kind"] == Kind.COLLECTIVE) & (records["op"] != Op.WAIT)]
    calls = calls[np.argsort(calls["enqueue_ns"], kind="stable")]
    numbers = {
        number: process.names[number] for number in np.unique(calls["group"]) if 0 <= number < len(process.names)
    }
    found = [_group(one, calls[calls["group"] == number], name) for number, name in numbers.items()]
    silent = set(process.facts.groups) - set(numbers.values())
    return found + [_group(one, calls[:0], name) for name in sorted(silent)]


def _saw_the_end(process: Process) -> bool:
    """Its calls were recorded up to its last moment; a tier that looks at a share of the steps looked at the last."""
    if process.facts.tier.get("tier") in WHOLE_TIERS:
        return True
    calls = process.records[process.records["kind"] == Kind.COLLECTIVE]
    return bool(calls.size) and int(calls["step"].max()) >= process.step_count


def _group(one: Placed, calls: Records, name: str) -> dict[str, Any]:
    facts = one.process.facts.groups.get(name)
    collective = calls[~np.isin(calls["op"], _POINT_TO_POINT)]
    unknown = (collective["flags"] & Flag.END_UNKNOWN) != 0
    open_calls = np.flatnonzero((calls["state"] != State.DONE) & ((calls["flags"] & Flag.END_UNKNOWN) == 0))
    kept = np.union1d(open_calls[-_MOST_UNFINISHED:], np.arange(max(0, calls.size - _NEWEST), calls.size)).astype(int)
    waits = collective["seq"][collective["state"] != State.DONE]
    last = int(collective["seq"].max()) if collective.size else None
    return {
        "name": name,
        "desc": facts.desc if facts is not None else "",
        "ranks": list(facts.ranks) if facts is not None else [],
        "known": True,
        "last_enqueued": last,
        "last_completed": None if unknown.any() else int(waits.min()) - 1 if waits.size else last,
        "cut": bool(kept.size < calls.size or (calls.size and calls["seq"][0] > 1)),
        "calls": [_call(one, calls[at], facts.ranks if facts is not None else ()) for at in kept],
    }


def _call(one: Placed, call: np.void, ranks: Sequence[int]) -> dict[str, Any]:
    names, peer, dtype = one.process.names, int(call["peer"]), int(call["dtype"])
    op, state, flags = int(call["op"]), int(call["state"]), int(call["flags"])
    waited = Flag.END_IS_WAIT | Flag.ASYNC
    return {
        "op": _OPS.get(op, "unknown"),
        "seq": int(call["seq"]),
        "state": State(state).name.lower(),
        "enqueue_ns": int(call["enqueue_ns"]) + one.offset_ns,
        "end_ns": int(call["end_ns"]) + one.offset_ns if state == State.DONE else None,
        "bytes_in": int(call["bytes_in"]),
        "bytes_out": int(call["bytes_out"]),
        "dtype": names[dtype] if dtype != NO_DTYPE and dtype < len(names) else None,
        "peer": ranks[peer] if 0 <= peer < len(ranks) else None,
        "phase": Phase(int(call["phase"])).name.lower(),
        "end_unknown": bool(flags & Flag.END_UNKNOWN) or (flags & waited == waited and state < State.DONE),
    }
