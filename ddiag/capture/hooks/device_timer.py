"""When a collective began and ended on a device, without ever waiting for it.

Two events are recorded around it and asked later whether they have happened. Device times are brought to the host's
clock by the earliest instant the device can have reached the first event: not before the host enqueued it. Whenever the
device was idle that is exact, so the largest such offset of the newest collectives is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ddiag.capture.recorder import Recorder

MAX_OPEN = 512
"""Collectives timed at once; more go untimed."""
ANCHOR_NS = 5_000_000_000
"""An event's time is a float of milliseconds: counted from a fresh anchor it keeps its microseconds."""
REMEMBERED = 256


class Timed(NamedTuple):
    token: int
    enqueue_ns: int
    anchor: Anchor
    start: Any
    end: Any


class Anchor:
    """The event all others are counted from, and what its host time must be at least."""

    def __init__(self, event: Any, made_ns: int) -> None:
        self.event = event
        self.made_ns = made_ns
        self._bounds: deque[float] = deque(maxlen=REMEMBERED)

    def offset(self, enqueue_ns: int, start_ns: float) -> float:
        """The anchor's host time, after also hearing that a collective enqueued then began *start_ns* later."""
        self._bounds.append(enqueue_ns - start_ns)
        return max(self._bounds)


class DeviceTimer:
    """*make_event* gives an event with ``record()``, ``query()`` and ``elapsed_time(later)`` in milliseconds."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make = make_event
        self._free: list[Any] = []
        self._made = 0
        self._open: deque[Timed] = deque()
        self._anchor: Anchor | None = None

    def begin(self, now_ns: int) -> Any:
        """Record the first event on the current stream; None when too many are open."""
        if self._anchor is None or now_ns - self._anchor.made_ns > ANCHOR_NS:
            event = self._make()
            event.record()
            self._anchor = Anchor(event, now_ns)
        start = self._take()
        if start is not None:
            start.record()
        return start

    def end(self, token: int, enqueue_ns: int, start: Any) -> bool:
        """Record the second event on the current stream (that the collective's own stream has been joined to)."""
        end = self._take()
        if end is None or self._anchor is None:
            self._free.append(start)
            return False
        end.record()
        self._open.append(Timed(token, enqueue_ns, self._anchor, start, end))
        return True

    def drop(self, start: Any) -> None:
        """The collective of *start* will not be timed after all."""
        self._free.append(start)

    def resolve(self, active: Recorder) -> int:
        """Write the times of what is over; how many there were. Later ones are not asked before the first is over."""
        done = 0
        while self._open and self._open[0].end.query() and self._open[0].anchor.event.query():
            one = self._open.popleft()
            began = one.anchor.event.elapsed_time(one.start) * 1e6
            ended = one.anchor.event.elapsed_time(one.end) * 1e6
            offset = one.anchor.offset(one.enqueue_ns, began)
            active.device_timed(one.token, int(offset + began), int(offset + ended))
            self._free += [one.start, one.end]
            done += 1
        return done

    def _take(self) -> Any:
        if self._free:
            return self._free.pop()
        if self._made >= 2 * MAX_OPEN:
            return None
        self._made += 1
        return self._make()
