"""A small simulator of ranks that launch work: host threads, device streams, collectives that wait for everybody.

A rank's program is a generator. It advances its own clock alone and yields a :class:`Call` wherever a collective needs
the other members; :func:`play` resumes it once all of them have issued theirs. Times are integer nanoseconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

COMPUTE = 7
"""Stream numbers as a CUDA profile shows them: the default stream, the copy stream, the process group's stream."""
COPY = 20
LAUNCH_QUEUE = 1024
"""Kernels a host may be ahead of the device before a launch blocks."""
LAUNCH_LATENCY_NS = 4_000
KERNEL_GAP_NS = 1_100
"""Between the end of a kernel and the start of the next on its stream."""


@dataclass(frozen=True)
class Group:
    """A process group."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    stream: int


@dataclass
class Call:
    """One collective call of one rank; ``end_ns`` is known when every member has started it."""

    group: Group
    op: str
    bytes_in: int
    bytes_out: int
    dtype: str
    start_ns: int = 0
    end_ns: int = 0


Program = Generator[Call, None, None]


@dataclass(frozen=True)
class Event:
    """Something that took time; ``kind`` is op, annotation, call (runtime API), kernel, memcpy or collective."""

    kind: str
    name: str
    lane: int
    """Thread id for host events, stream for device events."""
    start_ns: int
    end_ns: int
    correlation: int = -1
    external_id: int = -1
    args: Mapping[str, Any] = field(default_factory=dict)
    call: Call | None = None


@dataclass(frozen=True)
class MemoryMark:
    """An allocator event."""

    at_ns: int
    lane: int
    bytes: int
    allocated_bytes: int
    reserved_bytes: int


class Rank:
    """One rank's clock, threads and streams, and the record of what happened on them."""

    def __init__(
        self,
        rank: int,
        *,
        seed: int,
        on_device: bool,
        host_factor: float = 1.0,
        device_factor: float = 1.0,
        launch_blocking: bool = False,
    ) -> None:
        self.rank = rank
        self.on_device = on_device
        self.host_factor = host_factor
        self.launch_blocking = launch_blocking
        self.random = random.Random(seed * 1_000_003 + rank)
        self.device_factor = device_factor
        self.main_tid = 4_000 + 100 * rank
        self.autograd_tid = self.main_tid + 31
        self.comm_tid = self.main_tid + 57
        self.tid = self.main_tid
        self.now_ns = 1_000_000
        self.stream_free_ns: dict[int, int] = {}
        self.events: list[Event] = []
        self.memory: list[MemoryMark] = []
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._pending: deque[int] = deque()
        self._external: list[int] = []
        self._next_external = 0
        self._next_correlation = 0

    def jitter(self, mean_ns: float, spread: float = 0.02) -> int:
        """Return *mean_ns* with a little right-skewed noise, as real durations have."""
        return max(200, int(mean_ns * self.random.lognormvariate(0.0, spread)))

    def host(self, micros: float) -> None:
        """Let the host work for about so long."""
        # Called millions of times: one uniform number is enough noise for what adds up anyway.
        self.now_ns += int(micros * self.host_factor * (920.0 + 160.0 * self.random.random()))

    @contextmanager
    def span(
        self, name: str, kind: str = "op", *, args: Mapping[str, Any] | None = None, call: Call | None = None
    ) -> Iterator[None]:
        """Record a host span around what happens inside."""
        self._next_external += 1
        external, start, tid = self._next_external, self.now_ns, self.tid
        self._external.append(external)
        self.host(1.2)
        yield
        self.host(0.8)
        self._external.pop()
        self.events.append(Event(kind, name, tid, start, self.now_ns, external_id=external, args=args or {}, call=call))

    @contextmanager
    def thread(self, tid: int) -> Iterator[None]:
        """Run on another host thread while this one waits for it (as the main thread waits for autograd)."""
        before, self.tid = self.tid, tid
        yield
        self.tid = before

    def api(self, name: str, micros: float, *, until_ns: int = 0) -> int:
        """Record a runtime call that takes *micros*, or until *until_ns* if that is later; return its correlation."""
        self._next_correlation += 1
        start = self.now_ns
        self.host(micros)
        self.now_ns = max(self.now_ns, until_ns)
        self.events.append(
            Event("call", name, self.tid, start, self.now_ns, self._next_correlation, self._outer()),
        )
        return self._next_correlation

    def kernel(self, name: str, micros: float, *, stream: int = COMPUTE) -> None:
        """Launch a kernel; on a host-only rank, compute instead."""
        if not self.on_device:
            self.now_ns += self.jitter(micros * 1e3 * self.device_factor)
            return
        duration = self.jitter(micros * 1e3 * self.device_factor)
        self._submit("kernel", name, "cudaLaunchKernel", duration, stream, blocking=self.launch_blocking)

    def copy(self, direction: str, size: int, *, gbps: float, pinned: bool = True, stream: int = COMPUTE) -> None:
        """Copy between host and device; a pageable copy holds the host until it is done."""
        if not self.on_device:
            self.host(size / 8e3)
            return
        duration = self.jitter(size / gbps + 1_500)
        side = "Pinned" if pinned else "Pageable"
        name = {
            "h2d": f"Memcpy HtoD ({side} -> Device)",
            "d2h": f"Memcpy DtoH (Device -> {side})",
            "d2d": "Memcpy DtoD (Device -> Device)",
        }[direction]
        end = self._submit(
            "memcpy", name, "cudaMemcpyAsync", duration, stream, blocking=not pinned, args={"bytes": size}
        )
        if not pinned:
            self.api("cudaStreamSynchronize", 3, until_ns=end)

    def synchronize(self, name: str, *streams: int) -> None:
        """Block the host until the given streams (all, if none is given) have drained."""
        free = [self.stream_free_ns.get(s, 0) for s in streams] or list(self.stream_free_ns.values())
        self.api(name, 4, until_ns=max(free, default=0))

    def stream_waits(self, waiting: int, awaited: int) -> None:
        """Make a stream wait for what another has been given so far; on a host-only rank the host itself waits."""
        done = self.stream_free_ns.get(awaited, 0)
        if not self.on_device:
            self.now_ns = max(self.now_ns, done)
            return
        self.api("cudaStreamWaitEvent", 1.5)
        self.stream_free_ns[waiting] = max(self.stream_free_ns.get(waiting, 0), done)

    def collective(self, call: Call, kernel_name: str) -> Program:
        """Issue a collective behind the work its input depends on; waits for nobody on the host."""
        stream = call.group.stream
        if self.on_device:
            if stream != COMPUTE:
                self.stream_waits(stream, COMPUTE)
            correlation = self.api("cudaLaunchKernelExC", 6, until_ns=self._room_at_ns())
            earliest = self.now_ns + LAUNCH_LATENCY_NS
        else:
            correlation, earliest = -1, self.now_ns
        call.start_ns = max(earliest, self.stream_free_ns.get(stream, 0))
        yield call
        self.stream_free_ns[stream] = call.end_ns
        if self.on_device:
            self._pending.append(call.end_ns)
        self.events.append(
            Event(
                "collective",
                kernel_name,
                stream if self.on_device else self.comm_tid,
                call.start_ns,
                call.end_ns,
                correlation,
                self._outer(),
                call=call,
            )
        )

    def allocate(self, size: int) -> None:
        """Record an allocation (a negative size frees)."""
        self.allocated_bytes += size
        self.reserved_bytes = max(self.reserved_bytes, self.allocated_bytes)
        self.memory.append(MemoryMark(self.now_ns, self.tid, size, self.allocated_bytes, self.reserved_bytes))

    def _outer(self) -> int:
        return self._external[-1] if self._external else -1

    def _room_at_ns(self) -> int:
        """When the launch queue has room for one more; a launch blocks until then."""
        return self._pending.popleft() if len(self._pending) >= LAUNCH_QUEUE else 0

    def _submit(
        self,
        kind: str,
        name: str,
        api: str,
        duration_ns: int,
        stream: int,
        *,
        blocking: bool = False,
        args: Mapping[str, Any] | None = None,
    ) -> int:
        blocked_until = self._room_at_ns()
        free = self.stream_free_ns.get(stream, -KERNEL_GAP_NS) + KERNEL_GAP_NS
        start = max(max(self.now_ns, blocked_until) + LAUNCH_LATENCY_NS, free)
        end = start + duration_ns
        correlation = self.api(api, 4.5, until_ns=end if blocking else blocked_until)
        self.stream_free_ns[stream] = end
        self._pending.append(end)
        self.events.append(Event(kind, name, stream, start, end, correlation, self._outer(), args or {}))
        return end


def play(programs: Mapping[int, Program], transfer_ns: Callable[[Call], int]) -> None:
    """Run all programs to their end; a collective ends for all members when the last has started it, plus transfer."""
    arrived: dict[str, dict[int, Call]] = {}
    runnable: deque[int] = deque(programs)
    while runnable:
        rank = runnable.popleft()
        call = next(programs[rank], None)
        if call is None:
            continue
        members = arrived.setdefault(_key(call.group), {})
        members[rank] = call
        if len(members) == len(call.group.ranks):
            _finish(members.values(), transfer_ns)
            runnable.extend(members)
            arrived[_key(call.group)] = {}
    stuck = {key: sorted(members) for key, members in arrived.items() if members}
    if stuck:
        raise RuntimeError(f"the scenario never finishes: ranks wait in {stuck}")


def _key(group: Group) -> str:
    return f"{group.name}:{group.ranks}"


def _finish(calls: Iterable[Call], transfer_ns: Callable[[Call], int]) -> None:
    members = list(calls)
    end = max(call.start_ns for call in members) + transfer_ns(members[0])
    for call in members:
        call.end_ns = end
