"""What logs say of a stall: which ranks printed that they wait, in what, and which ranks the job has.

``[rank7]:`` is a global rank, ``[Rank 3]`` one inside the process group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddiag.analysis.hang.vote import IN_SIZED, OUT_SIZED, Signature
from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events

DEFAULT, GLOO = "0", "gloo"
DEFAULT_GROUPS = ("", DEFAULT, "default_pg")


@dataclass(frozen=True)
class Wait:
    """One rank's word that it waits."""

    rank: int
    group: str
    seq: int
    op: str
    numel_in: int | None
    numel_out: int | None
    event: Event

    @property
    def signature(self) -> Signature:
        size = self.numel_in if self.op in IN_SIZED else self.numel_out if self.op in OUT_SIZED else None
        return (self.op, size, "")

    @property
    def size(self) -> int | None:
        """Members of the group, where the shape of the call gives it away."""
        if self.op == "all_gather" and self.numel_in and self.numel_out and self.numel_out % self.numel_in == 0:
            return self.numel_out // self.numel_in
        if self.op == "reduce_scatter" and self.numel_in and self.numel_out and self.numel_in % self.numel_out == 0:
            return self.numel_in // self.numel_out
        return None


@dataclass(frozen=True)
class Told:
    """What the logs say of a stall."""

    waits: tuple[Wait, ...]
    """The first call each rank waits in, per group."""
    world: tuple[int, ...]
    status: Mapping[tuple[int, str], tuple[int | None, int | None]]
    """(rank, group) -> last enqueued, last completed."""
    healthy_counts: bool = False
    """RAS saw every rank at the same place."""

    @property
    def waiting(self) -> frozenset[int]:
        return frozenset(wait.rank for wait in self.waits)

    @property
    def silent(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.world if rank not in self.waiting)


def told(events: Events, world: Iterable[int], *, healthy_counts: bool = False) -> Told:
    """Collect the waiting ranks of all logs. *world*: ranks known otherwise."""
    first: dict[tuple[int, str], Wait] = {}
    for event in events.of("c10d.watchdog_timeout"):
        wait = _wait(event)
        if wait is not None:
            key = (wait.rank, wait.group)
            if key not in first or wait.seq < first[key].seq:
                first[key] = wait
    if not first:
        first = _gloo_waits(events)
    status: dict[tuple[int, str], tuple[int | None, int | None]] = {}
    for event in events.of("c10d.pg_status"):
        rank = _rank(event)
        if rank is not None:
            status[rank, _group(event)] = (event.integer("last_enqueued"), event.integer("last_completed"))
    known = {*world, *(wait.rank for wait in first.values()), *(e.rank for e in events.all if e.rank is not None)}
    known |= {rank for event in events.of("c10d.desync", "c10d.monitored_barrier") for rank in _mentioned(event)}
    size = max((event.integer("nranks") or 0 for event in events.of("nccl.init")), default=0)
    whole = tuple(range(max(max(known) + 1, size))) if known else ()
    return Told(tuple(first.values()), whole, status, healthy_counts)


def _mentioned(event: Event) -> set[int]:
    """Every rank that a report names."""
    lists = [event.get(name) for name in ("lagging", "never_joined", "missing")]
    for name in ("started", "finished"):
        states = event.get(name)
        lists += list(states.values()) if isinstance(states, dict) else []
    return {rank for ranks in lists if isinstance(ranks, list) for rank in ranks if isinstance(rank, int)}


def _gloo_waits(events: Events) -> dict[tuple[int, str], Wait]:
    """Ranks whose gloo operation timed out; gloo numbers nothing, so all are taken to be in one call."""
    found: dict[tuple[int, str], Wait] = {}
    for event in events.of("gloo.timeout"):
        if event.rank is not None:
            wait = Wait(event.rank, GLOO, 0, event.word("direction") or "wait", None, None, event)
            found.setdefault((event.rank, GLOO), wait)
    return found


def _rank(event: Event) -> int | None:
    """The global rank: as the envelope says, or the group rank where the group is the default one."""
    if event.rank is not None:
        return event.rank
    group, desc = event.word("group"), event.word("group_desc")
    return event.integer("group_rank") if group in DEFAULT_GROUPS or desc == "default_pg" else None


def _wait(event: Event) -> Wait | None:
    rank, seq = _rank(event), event.integer("seq")
    if rank is None or seq is None:
        return None
    size = (event.integer("numel_in"), event.integer("numel_out"))
    return Wait(rank, _group(event), seq, event.word("op"), *size, event)


def _group(event: Event) -> str:
    """The group's name; watchdogs that do not name one speak of the default group."""
    return event.word("group") or DEFAULT
