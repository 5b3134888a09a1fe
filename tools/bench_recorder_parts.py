"""The recorder's single operations, for ``tools.bench_recorder_job``: what each costs, how many a step has."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RING_RECORDS = 33_000
"""Goes once round a ring, so that its whole memory counts."""
PASSES, CALLS, ISSUED = 12, 3_000, 100


class Switch:
    """What the recorder does in the next step, in a recording that goes on.

    Kinds: ``off`` and ``again`` (nothing), ``on``, ``read`` (memory is read as well, which short steps do in part) and,
    of a tier that samples, ``looked``.
    """

    def __init__(self, mode: str, active: Any) -> None:
        self._active = active
        from ddiag.capture.hooks import c10d_dispatch, c10d_hooks, c10d_native

        self._paused = 0
        self._library = c10d_native.library
        modules = {"dispatch": c10d_dispatch, "hooks": c10d_hooks}
        self._tier: Any = vars(modules[mode])["_tier"] if mode in modules else None
        self.kinds = ["off", "again", "on", "read", *([] if self._tier is None else ["looked"])]
        self._look = False
        self.on = True
        """Of :class:`ddiag.capture.pace.Pace`, for which this stands in: memory is read in this step."""

    @property
    def looking(self) -> bool:
        return self._tier is None or bool(self._tier.looking)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile neither the tier nor the pace of reading memory chooses steps itself; in the end all is on."""
        chosen = getattr(self._tier, "share", None)
        pace = self._active.__dict__["_memory_pace"]
        self._active.__dict__["_memory_pace"] = self
        if self._tier is not None:
            self._tier.share = self
        try:
            yield
        finally:
            self.to("on")
            self._active.__dict__["_memory_pace"] = pace
            if self._tier is not None:
                self._tier.share = chosen

    def step_ended(self, _now_or_step_ns: int, _cost_ns: int | None = None) -> None:
        """Of Pace, and of :class:`ddiag.capture.hooks.sampling.Share`, for which this stands in as well."""

    def spent(self, _took_ns: int) -> None:
        """Of Pace."""

    def looks_at(self, _step: int) -> bool:
        return self._look

    def to(self, kind: str) -> None:
        from ddiag.capture.door import DOOR

        for hook in DOOR.hooks.values():
            hook.live = kind in ("on", "read", "looked")
        self.on = kind == "read"
        if self._tier is not None:
            self._look = kind == "looked"
            self._tier.look(self._look)
        elif self._library is not None:
            if self._paused:
                self._library.go_on(self._paused)
            self._paused = 0 if kind in ("on", "read") else self._library.hold()


def micro(
    recording: Callable[[], AbstractContextManager[Any]], mode: str, group: Any, device: str
) -> dict[str, float | None]:
    """Microseconds that each operation adds, on the clock of the training thread unless named otherwise; and memory."""
    tensor = torch.ones(8, device=device)
    collectives(group, CALLS, tensor)
    before = rss_mb()
    with recording() as active:
        collectives(group, RING_RECORDS, tensor)
        switch = Switch(mode, active)
        found: dict[str, float | None] = {"mark": marks(active), "step_end": step_ends(active, switch)}
        found["switch"] = switches(switch)
        found["rss_mb"] = rss_mb() - before
    # The least of each: what else the machine does only adds.
    off, on, alone = [], [], []
    for _ in range(PASSES):
        off.append(collectives(group, CALLS, tensor))
        with recording():
            collectives(group, ISSUED, tensor)
            on.append(collectives(group, CALLS, tensor))
            with unfollowed():
                alone.append(collectives(group, CALLS, tensor)["issue"])
    found |= {name: min(one[name] for one in on) - min(one[name] for one in off) for name in off[0]}
    return found | {"alone": min(alone) - min(one["issue"] for one in off), "handoff": handoff()}


@contextlib.contextmanager
def unfollowed() -> Iterator[None]:
    """Meanwhile no thread of a backend tells the tiers in Python when a collective is over."""
    from ddiag.capture.hooks import c10d_dispatch, hooked_group

    def left_alone(active: Any, token: int, *_more: object) -> None:
        active.issued(token)

    kept = {module: module.__dict__["follow"] for module in (c10d_dispatch, hooked_group)}
    for module in kept:
        module.__dict__["follow"] = left_alone
    try:
        yield
    finally:
        for module, follow in kept.items():
            module.__dict__["follow"] = follow


def handoff() -> float:
    """What this machine takes to hand the interpreter from one Python thread to another that waits for it, in µs."""
    mine, theirs = threading.Lock(), threading.Lock()
    mine.acquire()
    theirs.acquire()

    def answer() -> None:
        for _ in range(ISSUED):
            theirs.acquire()
            mine.release()

    taken = []
    for _ in range(PASSES):
        other = threading.Thread(target=answer)
        other.start()
        began = time.perf_counter()
        for _ in range(ISSUED):
            theirs.release()
            mine.acquire()
        taken.append(time.perf_counter() - began)
        other.join()
    return min(taken) / ISSUED / 2 * 1e6


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def collectives(group: Any, count: int, tensor: torch.Tensor) -> dict[str, float]:
    """CPU time per asynchronous collective, and per wait for one that has long ended, in µs."""
    taken: dict[str, list[float]] = {"issue": [], "process": [], "wait": []}
    for _ in range(0, count, ISSUED):
        began, began_all = time.thread_time(), time.process_time()
        works = [dist.all_reduce(tensor, group=group, async_op=True) for _ in range(ISSUED)]
        issued = time.thread_time()
        while not all(work.is_completed() for work in works):
            time.sleep(0.001)
        ended, ended_all = time.thread_time(), time.process_time()
        for work in works:
            work.wait()
        taken["issue"].append(issued - began)
        taken["process"].append(ended_all - began_all)
        taken["wait"].append(time.thread_time() - ended)
    return {name: sorted(values)[len(values) // 4] / ISSUED * 1e6 for name, values in taken.items()}


def marks(active: Any) -> float:
    """One phase mark: a phase has two, its beginning and its end."""
    from ddiag.schema.phases import Phase

    return timed(lambda: active.leave(active.enter(Phase.LOGGING))) / 2


def step_ends(active: Any, switch: Switch) -> float:
    """The end of a step: its summary, memory and what else is sampled then, and the optimizer's phase before it."""

    def end() -> None:
        active.begin_optimizer(1)
        active.end_optimizer(1)

    with switch.held():
        return timed(end)


def switches(switch: Switch) -> float | None:
    """A sampling tier comes and goes; None for one that stays."""
    if "looked" not in switch.kinds:
        return None

    def there_and_back() -> None:
        switch.to("looked")
        switch.to("on")

    with switch.held():
        return timed(there_and_back)


def timed(call: Callable[[], None]) -> float:
    """Thread time of one call, in µs: the least of many, as of the collectives."""
    taken = []
    for _ in range(60):
        began = time.thread_time()
        for _ in range(ISSUED):
            call()
        taken.append(time.thread_time() - began)
        time.sleep(0.005)  # what slows this machine, a neighbour, comes and goes
    return min(taken) / ISSUED * 1e6


def read_share(active: Any, steps: int) -> float:
    """The part of the last *steps* steps in which memory was read."""
    from ddiag.schema.steps import unpack

    last = unpack(active.files.steps.read_bytes())[-steps:]
    return sum(one.rss_bytes >= 0 for one in last) / len(last)


def operations(active: Any) -> dict[str, float]:
    """Records of each kind per recorded step, the median; a step without a kind does not count for it."""
    from ddiag.schema.phases import Kind, Op
    from ddiag.schema.ring import unpack_header, unpack_records

    names = {int(Kind.PHASE): "phase", int(Kind.COLLECTIVE): "collective"}
    counts: dict[str, dict[int, int]] = {}
    for path in (active.files.ring, active.files.native_ring):
        if not path.exists():
            continue
        data = path.read_bytes()
        for record in unpack_records(data, unpack_header(data, source=str(path)).capacity):
            wait = record.kind == Kind.COLLECTIVE and record.op == Op.WAIT
            by_step = counts.setdefault("wait" if wait else names.get(record.kind, "other"), {})
            by_step[record.step] = by_step.get(record.step, 0) + 1
    return {name: statistics.median(by_step.values()) for name, by_step in counts.items()}
