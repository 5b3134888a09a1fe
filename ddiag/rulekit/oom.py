"""Why the allocator could not serve a request, from the numbers its message gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Deaths, Events
from ddiag.rulekit.cost import human_bytes
from ddiag.rulekit.finding import Severity, State
from ddiag.rulekit.values import ranks_of

FOREIGN, OUTSIDE, FRAGMENTED, NEED, CORRUPT = "foreign", "outside", "fragmented", "need", "corrupt"
FRAGMENTED_SHARE = 0.10
"""Reserved but unallocated memory / capacity from which fragmentation is the matter: a few per cent are normal."""
FOREIGN_SHARE = 0.05
OUTSIDE_BYTES = 5 << 30
"""Context, NCCL buffers and libraries of one process usually need 1-3 GiB."""
OUTSIDE_SHARE = 0.15


@dataclass(frozen=True)
class Oom:
    """One request that failed. Bytes; absent parts of the message are 0."""

    event: Event
    reason: str
    tried: int
    capacity: int
    free: int
    allocated: int
    unallocated: int
    foreign: int
    """Held by other processes, listed by pid or not."""
    outside: int
    """Held by this process, not through the allocator."""

    @property
    def handled(self) -> bool:
        return self.event.get("handled") is True

    @property
    def gpu(self) -> str:
        device = self.event.integer("device")
        return "the GPU" if device is None else f"GPU {device}"


def ooms(events: Events) -> tuple[Oom, ...]:
    """Every failed request once: a traceback, a summary and an error file repeat the same message."""
    seen: dict[tuple[object, ...], Oom] = {}
    for event in events.of("cuda.oom"):
        one = _classified(event)
        key = (one.event.rank, one.event.get("device"), one.tried, one.free, one.allocated, one.unallocated)
        seen.setdefault(key, one)
    return tuple(seen.values())


def of_reason(events: Events, *reasons: str) -> tuple[Oom, ...]:
    return tuple(one for one in ooms(events) if one.reason in reasons)


def _classified(event: Event) -> Oom:
    def size(name: str) -> int:
        return event.integer(name) or 0

    tried, capacity, free = size("tried_bytes"), size("capacity_bytes"), size("free_bytes")
    allocated, unallocated, process = size("allocated_bytes"), size("unallocated_bytes"), size("process_bytes")
    listed = _listed(event)
    reserved = allocated + unallocated
    counted = process > 0 or reserved > 0  # a line cut short says nothing of what this process holds
    unseen = max(capacity - free - max(process, reserved) - listed, 0) if capacity and counted else 0
    outside = max(process - reserved, 0) if process else 0
    foreign = listed + (unseen if unseen >= max(OUTSIDE_BYTES, OUTSIDE_SHARE * capacity) else 0)
    one = Oom(event, NEED, tried, capacity, free, allocated, unallocated, foreign, outside)
    return Oom(event, _reason(one), tried, capacity, free, allocated, unallocated, foreign, outside)


def _listed(event: Event) -> int:
    others = event.get("others")
    found = [one.get("bytes") for one in others if isinstance(one, dict)] if isinstance(others, list) else []
    return sum(amount for amount in found if isinstance(amount, int))


def _reason(one: Oom) -> str:
    """What, if it were not there, would have let the request succeed; the need itself when nothing else would."""
    if one.event.get("corrupt_size") is True:
        return CORRUPT
    if one.capacity and one.foreign >= FOREIGN_SHARE * one.capacity and one.free + one.foreign >= one.tried:
        return FOREIGN
    if one.capacity and one.unallocated >= FRAGMENTED_SHARE * one.capacity and one.free + one.unallocated >= one.tried:
        return FRAGMENTED
    if one.outside >= OUTSIDE_BYTES and one.free + one.outside >= one.tried:
        return OUTSIDE
    return NEED


def failed_ranks(found: Iterable[Oom], deaths: Deaths | None) -> tuple[int, ...]:
    """Ranks whose request failed; where the message does not say, those that died of it."""
    known = ranks_of(one.event for one in found)
    if known or deaths is None:
        return known
    dead = {death.rank for death in deaths.first if death.cause == "cuda_oom"}
    return tuple(sorted(rank for rank in dead if rank is not None))


def culprit_ranks(found: Iterable[Oom], deaths: Deaths | None, facts: JobFacts | None = None) -> tuple[int, ...]:
    """The failed ranks; none when it is all of them, for then it is the job's size and no rank's fault."""
    ranks = failed_ranks(found, deaths)
    if len(ranks) < 2:
        return ranks
    world = (facts.world_size if facts is not None else None) or ranks[-1] + 1
    return () if ranks == tuple(range(world)) else ranks


def gravity(found: Iterable[Oom], deaths: Deaths | None) -> tuple[Severity, State]:
    """A program that catches the error and skips the batch, or takes a smaller one, goes on, poorer."""
    if all(one.handled for one in found) or not _fatal(deaths):
        return Severity.WARNING, State.DEGRADED
    return Severity.CRITICAL, State.CRASHED


def numbers(one: Oom) -> str:
    """``77.5 GiB allocated + 905 MiB reserved of 79.1 GiB, 68.8 MiB free, 86 MiB asked for``."""
    return (
        f"{human_bytes(one.allocated)} allocated + {human_bytes(one.unallocated)} reserved but unallocated of "
        f"{human_bytes(one.capacity)}, {human_bytes(one.free)} free, {human_bytes(one.tried)} asked for"
    )


def _fatal(deaths: Deaths | None) -> bool:
    """A process died that had run out of memory; where it went on working after the message, none did."""
    dead = (*deaths.first, *deaths.cascade) if deaths is not None else ()
    return any(death.cause == "cuda_oom" or any(e.kind == "cuda.oom" for e in death.events) for death in dead)
