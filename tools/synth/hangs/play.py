"""Plays the programs of all ranks until nothing moves: streams, host waits, matching of calls, and planted faults."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tools.synth.hangs.program import Layout, Op

HOST_NS = 100_000
"""Time between two calls of a host."""
CALL_NS = 1_000_000
OUT_SIZED = ("all_gather",)


@dataclass
class Call:
    """One issued call of one rank."""

    op: Op
    seq: int
    """Of collectives, or of sends and receives, in its group."""
    created_ns: int
    after: int
    """Calls on the main stream that must end before it."""
    state: str = "scheduled"
    completed_ns: int | None = None


@dataclass(frozen=True)
class Trouble:
    """What is planted beside changed programs."""

    stop_at: Mapping[int, int] = field(default_factory=dict)
    """rank -> index in its program at which its host stops for ever."""
    gpu_stuck_at: Mapping[int, int] = field(default_factory=dict)
    """rank -> index from which its GPU begins nothing more."""
    never: tuple[int, int] | None = None
    """(group, seq): everybody begins it, nobody ends it."""
    not_for: tuple[int, int, int] | None = None
    """(group, seq, rank): it ends everywhere but on this rank."""


@dataclass
class Rank:
    """State of one rank."""

    number: int
    program: tuple[Op, ...]
    place: int = 0
    host_ns: int = 0
    calls: list[Call] = field(default_factory=list)
    main: deque[Call] = field(default_factory=deque)
    main_done: int = 0
    main_issued: int = 0
    main_ns: int = 0
    streams: dict[int, deque[Call]] = field(default_factory=lambda: defaultdict(deque))
    counts: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    open: int = 0
    waits: bool = False

    def startable(self, call: Call, stuck_at: int | None) -> bool:
        if stuck_at is not None and call.created_ns >= self.calls[stuck_at].created_ns:
            return False
        if self.streams[call.op.group][0] is not call:
            return False
        return self.main_done >= call.after if call.op.overlapped else self.main[0] is call


class Player:
    """Runs a layout with its trouble."""

    def __init__(self, layout: Layout, programs: tuple[tuple[Op, ...], ...], trouble: Trouble) -> None:
        self.layout = layout
        self.trouble = trouble
        self.ranks = [Rank(number, program) for number, program in enumerate(programs)]

    def run(self) -> list[Rank]:
        """Play until nothing moves; open calls are then ``started`` where their GPU had come to them."""
        todo = deque(range(len(self.ranks)))
        queued = set(todo)
        while todo:
            number = todo.popleft()
            queued.discard(number)
            for other in self._advance(self.ranks[number]):
                if other not in queued:
                    queued.add(other)
                    todo.append(other)
        for rank in self.ranks:
            for stream in rank.streams.values():
                if stream and self._can_start(rank, stream[0]):
                    stream[0].state = "started"
        return self.ranks

    def _can_start(self, rank: Rank, call: Call) -> bool:
        stuck = self.trouble.gpu_stuck_at.get(rank.number)
        return rank.startable(call, stuck if stuck is not None and stuck < len(rank.calls) else None)

    def _advance(self, rank: Rank) -> Iterable[int]:
        moved: set[int] = set()
        while True:
            self._issue(rank)
            done = [call for stream in list(rank.streams.values()) if stream for call in [stream[0]]]
            ended = [ranks for call in done if (ranks := self._try(rank, call))]
            if not ended:
                return moved
            for ranks in ended:
                moved |= ranks
            moved.discard(rank.number)

    def _issue(self, rank: Rank) -> None:
        stop = self.trouble.stop_at.get(rank.number)
        while rank.place < len(rank.program) and rank.place != stop:
            if rank.waits and rank.open:
                return
            rank.waits = False
            op = rank.program[rank.place]
            kind = "p2p" if op.name in ("send", "recv") else "coll"
            rank.counts[op.group, kind] += 1
            rank.host_ns += HOST_NS
            call = Call(op, rank.counts[op.group, kind], rank.host_ns, rank.main_issued)
            rank.calls.append(call)
            rank.streams[op.group].append(call)
            rank.open += 1
            if not op.overlapped:
                rank.main.append(call)
                rank.main_issued += 1
            rank.waits = op.blocks
            rank.place += 1

    def _try(self, rank: Rank, call: Call) -> set[int]:
        """Ranks on which *call* ends now."""
        if not self._can_start(rank, call):
            return set()
        op = call.op
        members = (rank.number, op.peer) if op.peer is not None else self.layout.groups[op.group].ranks
        calls: dict[int, Call] = {}
        for number in members:
            other = self.ranks[number]
            stream = other.streams[op.group]
            if not stream or not self._can_start(other, stream[0]) or not _meets(call, stream[0], rank.number):
                return set()
            calls[number] = stream[0]
        if op.peer is None and self._fails(op.group, call.seq, calls):
            return set()
        return self._end(op.group, call.seq, calls)

    def _fails(self, group: int, seq: int, calls: Mapping[int, Call]) -> bool:
        return self.trouble.never == (group, seq) or len({_signature(call.op) for call in calls.values()}) > 1

    def _end(self, group: int, seq: int, calls: Mapping[int, Call]) -> set[int]:
        when = max(max(call.created_ns, self.ranks[number].main_ns) for number, call in calls.items()) + CALL_NS
        spared = self.trouble.not_for
        ended = set()
        for number, call in calls.items():
            if spared == (group, seq, number) and call.op.peer is None:
                call.state = "started"
                continue
            rank = self.ranks[number]
            call.state, call.completed_ns = "completed", when
            rank.streams[group].popleft()
            rank.open -= 1
            if not call.op.overlapped:
                rank.main.popleft()
                rank.main_done += 1
                rank.main_ns = when
            rank.host_ns = max(rank.host_ns, when) if rank.waits and not rank.open else rank.host_ns
            ended.add(number)
        return ended


def _meets(call: Call, other: Call, mine: int) -> bool:
    """The same collective, or a send and the receive for it."""
    if call is other:
        return True
    if (call.op.peer is None) != (other.op.peer is None):
        return False
    if call.op.peer is None:
        return call.seq == other.seq
    return other.op.peer == mine and call.op.name != other.op.name


def _signature(op: Op) -> tuple[str, int, str]:
    if op.name in ("all_to_all",):
        return op.name, 0, op.dtype
    return op.name, op.numel_out if op.name in OUT_SIZED else op.numel_in, op.dtype
