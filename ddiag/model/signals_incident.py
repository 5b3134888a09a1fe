"""Signals of incidents: what logs, dumps, tools and configurations say, and what follows from it about a job that
stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from ddiag.model.incident import Event, NodeFact, Setting, Stack
from ddiag.model.placement import Placement


@dataclass(frozen=True)
class Events:
    """Recognised lines of all logs, in the order of their (joined) time; undated ones keep their place in the file."""

    all: tuple[Event, ...]

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Events of these kinds, in order; a kind ending in ``.`` means the whole area."""
        return tuple(event for kind, events in self._by_kind.items() if _wanted(kind, kinds) for event in events)

    def has(self, *kinds: str) -> bool:
        return any(_wanted(kind, kinds) for kind in self._by_kind)

    def first(self, *kinds: str) -> Event | None:
        return min(self.of(*kinds), key=lambda event: self._place[id(event)], default=None)

    def about(self, rank: int) -> Iterator[Event]:
        """Events of one rank."""
        return (event for event in self.all if event.rank == rank)

    @cached_property
    def _by_kind(self) -> Mapping[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.all:
            found.setdefault(event.kind, []).append(event)
        return found

    @cached_property
    def _place(self) -> Mapping[int, int]:
        return {id(event): place for place, event in enumerate(self.all)}


def _wanted(kind: str, kinds: tuple[str, ...]) -> bool:
    return any(kind == wanted or (wanted.endswith(".") and kind.startswith(wanted)) for wanted in kinds)


@dataclass(frozen=True)
class Settings:
    """Configuration and environment values found in the evidence."""

    all: tuple[Setting, ...]

    def of(self, kind: str, key: str = "") -> tuple[Setting, ...]:
        """Settings of *kind* (all keys when *key* is empty)."""
        return tuple(one for one in self._by_kind.get(kind, ()) if key in ("", one.key))

    def value(self, kind: str, key: str) -> str | None:
        """The value most sources agree on; None when it is not set anywhere."""
        values = [one.value for one in self.of(kind, key)]
        return max(values, key=values.count) if values else None

    @cached_property
    def _by_kind(self) -> Mapping[str, list[Setting]]:
        found: dict[str, list[Setting]] = {}
        for setting in self.all:
            found.setdefault(setting.kind, []).append(setting)
        return found


@dataclass(frozen=True)
class NodeFacts:
    """What tools say of nodes and devices."""

    all: tuple[NodeFact, ...]

    def of(self, *keys: str) -> tuple[NodeFact, ...]:
        """Facts with these keys; a key ending in ``.`` means all below it."""
        return tuple(
            fact
            for fact in self.all
            if any(fact.key == key or (key.endswith(".") and fact.key.startswith(key)) for key in keys)
        )


@dataclass(frozen=True)
class Metrics:
    """Numbers that logs print again and again."""

    table: pl.DataFrame
    """rank, host, ts_ns, step, name, value, source"""

    def series(self, name: str) -> pl.DataFrame:
        """Rows of one metric in the order printed."""
        return self.table.filter(pl.col("name") == name)


@dataclass(frozen=True)
class Stacks:
    """Stacks of threads, as tools or our own supervisor took them."""

    all: tuple[Stack, ...]


@dataclass(frozen=True)
class Death:
    """A process that ended by itself (not because a launcher killed it afterwards)."""

    cause: str
    """exception, cuda_oom, cuda_error, nccl_error, host_oom, signal, exit, gpu_fault, preempted, unknown"""
    rank: int | None
    host: str | None
    ts_ns: int | None
    what: str
    """In words: ``RuntimeError: shape mismatch``, ``killed by signal 9``."""
    where: str | None = None
    """``function (file.py:123)``, where a traceback says it."""
    events: tuple[Event, ...] = ()
    """What shows it, first first."""


@dataclass(frozen=True)
class Deaths:
    """Who died, in order; those that others' death or a launcher brought down are in ``cascade``."""

    first: tuple[Death, ...]
    """The root deaths: earliest first; several when they happened independently."""
    cascade: tuple[Death, ...] = ()
    ordered: bool = True
    """False: times do not tell which came first, so ``first`` are candidates."""
    preempted: bool = False
    """The whole job was told to stop from outside."""


@dataclass(frozen=True)
class StoryLine:
    """One thing that happened, to one or many ranks in the same words."""

    what: str
    """``gave up waiting in all_reduce #4190``"""
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    ts_ns: int | None
    """The first of them, on ``clock``."""
    clock: str
    count: int
    source: str
    """file:line of the first."""


@dataclass(frozen=True)
class Story:
    """What happened, in order; what carries no time comes last, in the order of its file."""

    lines: tuple[StoryLine, ...]
    left_out: int = 0
    """Lines beyond those that fit."""


@dataclass(frozen=True)
class GroupStand:
    """How far the members of one process group came."""

    group: str
    desc: str
    ranks: tuple[int, ...]
    call: str
    """coll, p2p or coalesced"""
    head: int | None
    """The first sequence number not completed by all members."""
    op: str
    state_of: Mapping[int, str] = field(default_factory=dict)
    """rank -> completed, started, scheduled, absent, evicted or no-dump, at the head."""
    numel_of: Mapping[int, tuple[int | None, int | None]] = field(default_factory=dict)
    """rank -> (elements in, elements out) at the head."""
    op_of: Mapping[int, str] = field(default_factory=dict)
    frame_of: Mapping[int, str] = field(default_factory=dict)
    """rank -> the line of user code that issued it (for absent ranks: the last one they issued)."""
    since_ns: int | None = None
    """When the first member began to wait."""


UNEVEN, DIVERGENT, SINGLE_RANK_SAVE, SETUP_WORK = "uneven", "divergent", "single_rank_save", "setup_work"
P2P_ORDER, COMM_ORDER, GENERATION, WEIGHT_SYNC = "p2p_order", "comm_order", "generation", "weight_sync"
METRICS, BUCKETS, SUBGROUP, SWALLOWED = "metrics", "buckets", "subgroup", "swallowed"
SLOW_CHECKPOINT, COMPILE_SKEW, GPU_STUCK, DATA_PLANE = "slow_checkpoint", "compile_skew", "gpu_stuck", "data_plane"
SHORT_TIMEOUT, SKIPPED_STEP, FROZEN_STORAGE = "short_timeout", "skipped_step", "frozen_storage"
HEARTBEAT, DEAD, UNKNOWN, NEVER_CAME = "heartbeat", "dead", "unknown", "never_came"
"""Words of :attr:`Stall.cause`."""


@dataclass(frozen=True)
class Stall:
    """Why a job does not go on: who is waited for, and by whom."""

    verdict: str
    """late (a rank did not come), dead, mismatch (op, size or type differ), deadlock (a cycle), p2p_unmatched,
    gpu_side (enqueued, never started, earlier work of that rank unfinished), in_flight (all started, none finished),
    partly_done (some finished it, some not), suspect_by_absence (only ranks without a dump explain it),
    running (nothing is stuck), or undecided."""
    culprits: tuple[int, ...]
    """Ranks; empty when the evidence does not name one."""
    victims: tuple[int, ...]
    confidence: str
    """high, medium or low"""
    group: str | None
    seq: int | None
    op: str | None
    why: str
    """One sentence that a person can check."""
    settle: str = ""
    """The capture that would decide, when this does not."""
    seen_waiting: int = 0
    """Ranks whose logs say that they wait in this group's call; 0 where dumps or stacks tell."""
    where: str | None = None
    """Line of user code at which the culprit is or was last seen."""
    phase: str = ""
    """Instead it is in: input, checkpoint, evaluation, exit, cleanup, user_code, cuda_call, gil or stopped."""
    ahead: tuple[int, ...] = ()
    """Culprits that went on to later work (other group, next phase) instead of being slow."""
    candidates: tuple[int, ...] = ()
    """Undecided: it is one of these."""
    mismatch: str = ""
    """In words: ``all_reduce of 1,024 elements on 7 ranks, 512 on rank 3``."""
    cycle: tuple[tuple[int, str], ...] = ()
    """Deadlock: (rank, what it waits in) around the cycle."""
    groups: tuple[GroupStand, ...] = ()
    """All groups that wait, the culprit's first."""
    stacks: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = ()
    """(ranks, frames): identical stacks together, the culprit's first."""
    since_ns: int | None = None
    origin: str = ""
    """flight, ring, watchdog, desync, ras, stack: what it was concluded from."""
    cause: str = ""
    """One of the words below: which fault it looks like. Exactly one rule stands behind each word."""
    timeout_ms: int | None = None
    """Timeout of the call that they wait in, where known."""
    said: str = ""
    """Last words of the culprit in the log, where they tell its phase."""
    said_source: str = ""
    """file:line of ``said``."""


INCIDENT_FAMILIES: tuple[type, ...] = (Events, Settings, NodeFacts, Metrics, Stacks, Deaths, Stall, Story, Placement)
