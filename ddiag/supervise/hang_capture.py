"""One node's capture of a job that hangs: what every local rank does, taken without its help."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddiag.schema.folder import samples_file
from ddiag.schema.hang import write_capture
from ddiag.schema.ring import Live
from ddiag.supervise import stacks
from ddiag.supervise.calls import PHASES, Facts, read_calls, read_facts
from ddiag.supervise.flight import dump_flight
from ddiag.supervise.proc import TICK_NS, field, read_text
from ddiag.supervise.processes import Stat, read_stat
from ddiag.supervise.progress import LocalRank

_LOOK_S = 0.5
"""Over which the use of the CPU is measured."""
_MOST_NATIVE = 4
"""Ranks of a node that are stopped for their native stacks: one for each different Python stack."""
_TAIL_BYTES = 1 << 18
_STOPPED = "tT"


@dataclass(frozen=True)
class Wanted:
    """What is captured, and why."""

    number: int
    by: str
    limits_s: Mapping[int, float]
    stuck: frozenset[int]


def capture(run: Path, host: str, ranks: Sequence[LocalRank], wanted: Wanted) -> Path:
    """Write ``capture.json``; its path. Takes a second or two; no rank that goes on is stopped for it."""
    at_ns, mono_ns = time.time_ns(), time.monotonic_ns()
    before = {one.pid: read_stat(one.pid) for one in ranks}
    facts = {one.pid: read_facts(one.files.facts) for one in ranks}
    flights = dump_flight(ranks)
    taken = _stacks(ranks, wanted, facts)
    time.sleep(max(0.0, _LOOK_S - (time.monotonic_ns() - mono_ns) / 1e9))
    look_ns = time.monotonic_ns() - mono_ns
    exits = _exits(run, host)
    described = [
        {
            **_of_ring(one, wanted, facts[one.pid], mono_ns),
            **_of_process(one, before[one.pid], look_ns),
            **exits.get(one.pid, {}),
            **taken[one.pid],
        }
        for one in ranks
    ]
    world = max((one.header.world_size for one in ranks), default=0)
    values = {"t": at_ns, "by": wanted.by, "world_size": world, "devices": _devices(run, host), "ranks": described}
    path = write_capture(run, host, wanted.number, values)
    for rank, dump in flights.collect():
        (path.parent / f"flight-{rank}").write_bytes(dump)
    return path


def _of_ring(one: LocalRank, wanted: Wanted, facts: Facts, now_ns: int) -> dict[str, Any]:
    live: Live = one.live
    return {
        "rank": one.rank,
        "pid": one.pid,
        "local_rank": one.header.local_rank,
        "attempt": one.files.attempt,
        "step": live.step,
        "phase": PHASES.get(live.phase, ""),
        "phase_s": round(max(0, now_ns - live.phase_since_ns) / 1e9, 3) if live.phase_since_ns else None,
        "quiet_s": round(max(0, now_ns - one.progress_ns()) / 1e9, 3),
        "limit_s": wanted.limits_s.get(one.rank),
        "stuck": one.rank in wanted.stuck,
        "closed": live.closed_ns > 0,
        "tier": facts.tier,
        "groups": read_calls(one.files, facts, step=live.step),
    }


# -- the process ---------------------------------------------------------------------------------------------------


def _of_process(one: LocalRank, before: Stat | None, look_ns: int) -> dict[str, Any]:
    now = read_stat(one.pid)
    if now is None or now.start_ticks != one.header.start_ticks:
        return {"state": ""}
    ran_ns = now.cpu_ns - before.cpu_ns if before is not None else 0
    status = read_text(f"/proc/{one.pid}/status")
    main = f"/proc/{one.pid}/task/{one.pid}"
    return {
        "state": now.state,
        "threads": now.threads,
        "wchan": read_text(f"{main}/wchan").strip("\0\n 0"),
        "cpu_share": round((ran_ns + TICK_NS // 2) / look_ns, 2) if ran_ns else 0.0,
        "rss_bytes": now.rss_bytes,
        "tracer": field(status, "TracerPid") or 0,
        "kernel": _kernel_stack(f"{main}/stack"),
    }


def _kernel_stack(path: str) -> list[str]:
    """Functions, innermost first; only root may read them."""
    lines = read_text(path).splitlines()
    return [line.partition("] ")[2].partition("+")[0] for line in lines if "] " in line][:20]


def _exits(run: Path, host: str) -> dict[int, dict[str, Any]]:
    """pid -> how it ended, as the sampler saw it."""
    found: dict[int, dict[str, Any]] = {}
    for line in _tail(samples_file(run, host)):
        if line.get("kind") == "exit":
            found[int(line.get("pid", 0))] = {key: line[key] for key in ("code", "signal") if key in line}
    return found


def _devices(run: Path, host: str) -> list[dict[str, Any]]:
    """The last sample of the devices."""
    for line in reversed(_tail(samples_file(run, host))):
        if line.get("devices") and line.get("kind") == "sample":
            return list(line["devices"])
    return []


def _tail(path: Path) -> list[dict[str, Any]]:
    """The newest lines of the samples; the first of them may be cut."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [one for one in found if isinstance(one, dict)]


# -- stacks --------------------------------------------------------------------------------------------------------


def _stacks(ranks: Sequence[LocalRank], wanted: Wanted, facts: Mapping[int, Facts]) -> dict[int, dict[str, Any]]:
    """pid -> ``stacks``, ``stacks_by``, ``no_stacks``."""
    there = [one for one in ranks if one.alive]
    with ThreadPoolExecutor(max_workers=4) as pool:
        taken = dict(zip([one.pid for one in there], pool.map(lambda one: _of_rank(one, facts), there), strict=True))
        chosen = _for_native(there, wanted, taken)
        native = dict(zip(chosen, pool.map(stacks.native_stacks, chosen), strict=True))
    return {one.pid: _told(taken.get(one.pid), native.get(one.pid)) for one in ranks}


def _of_rank(one: LocalRank, facts: Mapping[int, Facts]) -> stacks.Taken:
    taken = stacks.python_stacks(one.pid)
    stat = read_stat(one.pid)
    if taken.stacks or stat is None or stat.state in _STOPPED:
        return taken
    known = facts[one.pid]
    asked = stacks.asked_stacks(one.pid, known.stack_signal, known.stack_file)
    return asked if asked.stacks else taken


def _for_native(ranks: Sequence[LocalRank], wanted: Wanted, taken: Mapping[int, stacks.Taken]) -> list[int]:
    """One stuck rank for each different Python stack, those few ranks share first; never a stopped one."""
    by_stack: dict[tuple[str, ...], list[int]] = {}
    for one in ranks:
        stat = read_stat(one.pid)
        if one.rank in wanted.stuck and taken[one.pid].by == stacks.PROGRAM and stat and stat.state not in _STOPPED:
            by_stack.setdefault(stacks.main_stack(taken[one.pid].stacks), []).append(one.pid)
    return [pids[0] for pids in sorted(by_stack.values(), key=len)][:_MOST_NATIVE]


def _told(python: stacks.Taken | None, native: stacks.Taken | None) -> dict[str, Any]:
    if python is None:
        return {"stacks": [], "stacks_by": "", "no_stacks": "the process is gone"}
    main = [one for one in native.stacks if one["thread"] == stacks.MAIN] if native is not None else []
    return {"stacks": [*python.stacks, *main], "stacks_by": python.by, "no_stacks": python.why_not}
