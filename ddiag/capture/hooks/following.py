"""What the Python tiers share: beginning a record, numbering it, and learning when the collective is over."""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import Any

from ddiag.capture.door import guarded
from ddiag.capture.hooks import waits
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Op

_POINT_TO_POINT = (int(Op.SEND), int(Op.RECV))


class Sequence:
    """Numbers of a group's collectives, from 1 or after *begun_at*.

    Sends and receives are counted by peer, since other ranks have none.
    """

    def __init__(self, *, begun_at: int = 0) -> None:
        self._collectives = max(0, begun_at)
        self._pairs: dict[tuple[int, int], int] = {}

    def next(self, op: int, peer: int) -> int:
        if op not in _POINT_TO_POINT:
            self._collectives += 1
            return self._collectives
        pair = (op, peer)
        number = self._pairs[pair] = self._pairs.get(pair, 0) + 1
        return number


_told: weakref.WeakSet[Any] = weakref.WeakSet()
"""Callbacks that backends hold."""
_no_future: set[object] = set()
"""Operations whose Work offers no future: torch raises, which is dear, so it is asked once."""


def follow(active: Recorder, token: int, work: Any, operation: object) -> None:
    """The call has returned *work* (of a host backend): record when it is over."""
    active.issued(token)
    if work is None:
        active.complete(token)
        return
    if operation not in _no_future:
        try:
            future = work.get_future()
        except RuntimeError:
            _no_future.add(operation)
        else:
            waits.forget(active)
            told = partial(_done, active, token)
            _told.add(told)
            future.add_done_callback(told)
            return
    waits.ends_when_waited(active, token)


def drain(limit_s: float = 0.5) -> None:
    """Wait until no thread of a backend still has to call us, or let go of what it was to call.

    Both take the GIL. A process group that is destroyed joins its threads while the caller holds the GIL (torch 2.4
    hangs there for good), so before that nothing of ours may be on its way.
    """
    until = time.monotonic() + limit_s
    while len(_told) and time.monotonic() < until:
        time.sleep(0.001)


def _over(active: Recorder, token: int, future: Any) -> None:
    try:
        future.value()
    except RuntimeError:
        active.complete(token, ok=False)
    else:
        active.complete(token)


_done = guarded("collective.done", _over)
