"""The facts around a verdict that tell one fault from another: op, size, timeout, frameworks, tracebacks, progress."""

from __future__ import annotations

import re

import polars as pl

from ddiag.analysis.hang import phases
from ddiag.analysis.hang.cause import Hints
from ddiag.analysis.hang.phases import Context
from ddiag.analysis.hang.positions import Positions
from ddiag.analysis.hang.told import GLOO, Told, Wait
from ddiag.analysis.hang.verdict import Verdict
from ddiag.model.signals_incident import Events, Settings

_DDP = re.compile(
    r"DistributedDataParallel|find_unused_parameters|reducer\.cpp|Expected to have finished reduction|mark a variable "
    r"ready|torch/nn/parallel/distributed\.py|autograd/(function|graph)\.py|static_graph"
)
_SAVING = (phases.CHECKPOINT,)


def hints_of(
    found: Verdict, place: Positions | None, log: Told, events: Events, settings: Settings | None, around: Context
) -> Hints:
    """Everything :func:`cause_of` asks for; from dumps where there are some, else from the watchdogs' lines."""
    at_dumps = place is not None and found.node is not None and not place.front_rows.is_empty()
    base = _from_dumps(found, place) if at_dumps and place is not None else _from_logs(found, log, events)
    words = " ".join([*base.frames.values(), *(event.text for event in events.of("python.exception"))])
    return Hints(
        op=base.op,
        numel=base.numel,
        seq=base.seq,
        desc=base.desc,
        group=base.group,
        timeout_ms=base.timeout_ms,
        zero_stage=_zero_stage(settings),
        ddp=bool(_DDP.search(words)),
        raised=frozenset(e.rank for e in events.of("python.exception") if e.rank is not None) - found.waiting,
        ahead=_ahead(found, events),
        frames=base.frames,
        all_saving=_all_saving(found, around),
        first_call=base.first_call,
    )


def _from_dumps(found: Verdict, place: Positions) -> Hints:
    assert found.node is not None
    kind, group, seq, _ = found.node
    here = [rank for rank, node in place.fronts.items() if node == found.node]
    rows = place.front_rows.filter(pl.col("rank").is_in(here)) if here else place.front_rows
    row = rows.row(0, named=True)
    if found.mismatch is not None:
        usual = found.mismatch.usual
        row = {**row, "op": usual[0], "numel_in": usual[1]}
    frames = dict(place.last_frame)
    frames |= {rank: frame for rank, frame in place.front_rows.select("rank", "frame").iter_rows() if frame}
    first = kind == "coll" and seq <= 1
    return Hints(
        op=row["op"] or "",
        numel=row["numel_in"],
        seq=seq if kind == "coll" else row["seq"],
        desc=place.desc.get(group, ""),
        group=group,
        timeout_ms=row["timeout_ms"],
        frames=frames,
        first_call=first,
    )


def _from_logs(found: Verdict, log: Told, events: Events) -> Hints:
    at = [w for w in log.waits if found.node is None or (w.group, w.seq) == (found.node[1], found.node[2])]
    if not at:
        return Hints()
    wait = _usual(at, found)
    completed = [done for (_, group), (_, done) in log.status.items() if group == wait.group and done is not None]
    return Hints(
        op=wait.op,
        numel=wait.numel_in,
        seq=wait.seq if wait.group != GLOO else None,
        desc=wait.event.word("group_desc"),
        group=wait.group,
        timeout_ms=wait.event.integer("timeout_ms"),
        frames=_failed_at(events),
        first_call=bool(completed) and max(completed) <= 0,
    )


def _failed_at(events: Events) -> dict[int, str]:
    """rank -> line of user code of the call that timed out, where torch printed its stack."""
    lines: dict[int, str] = {}
    for event in events.of("c10d.collective_stack"):
        frames = event.get("frames")
        if event.rank is not None and isinstance(frames, list):
            lines.setdefault(event.rank, phases.user_line([str(frame) for frame in frames]) or "")
    return lines


def _usual(waits: list[Wait], found: Verdict) -> Wait:
    """A wait of the majority, where there is a mismatch."""
    if found.mismatch is None:
        return waits[0]
    return next((wait for wait in waits if wait.signature == found.mismatch.usual), waits[0])


def _zero_stage(settings: Settings | None) -> int | None:
    if settings is None:
        return None
    value = settings.value("ds_config", "zero_optimization.stage")
    return int(value) if value is not None and value.isdigit() else None


def _ahead(found: Verdict, events: Events) -> frozenset[int]:
    """Culprits whose last printed step or epoch is beyond that of every other rank that printed one."""
    last: dict[int, tuple[int, int]] = {}
    for event in events.of("log.progress"):
        step = event.integer("step")
        if event.rank is not None and step is not None:
            last[event.rank] = (event.integer("epoch") or 0, step)
    others = [place for rank, place in last.items() if rank not in found.culprits]
    if not others:
        return frozenset()
    return frozenset(rank for rank in found.culprits if rank in last and last[rank] > max(others))


def _all_saving(found: Verdict, around: Context) -> bool:
    """At least two ranks are seen in a checkpoint, and none is seen anywhere else."""
    seen = {rank: one.phase for rank, one in around.doing.items()}
    return len(seen) > 1 and set(seen.values()) == set(_SAVING) and not found.mismatch
