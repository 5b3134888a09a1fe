"""What the Python tiers share: learning when a collective is over."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from ddiag.capture.clock import now_ns
from ddiag.capture.door import callback
from ddiag.capture.hooks import waits
from ddiag.capture.recorder import Recorder
from ddiag.capture.ring import RingWriter
from ddiag.schema.phases import State
from ddiag.schema.ring import LIVE_PROGRESS

_ISSUED, _DONE, _FAILED = int(State.ISSUED), int(State.DONE), int(State.FAILED)


_told: dict[int, set[int]] = {}
"""Identities of the callbacks that backends hold, by id of the group."""
_no_future: set[object] = set()
"""Operations whose Work offers no future: torch raises, which is dear, so it is asked once."""


def told_of(group_id: int) -> set[int]:
    """Of :data:`_told`, the group's own."""
    found = _told.get(group_id)
    return _told.setdefault(group_id, set()) if found is None else found


def follow(active: Recorder, token: int, work: Any, operation: object, told: set[int]) -> None:
    """A call has returned *work* (of a host backend): record when it is over. *told* is :func:`told_of` its group."""
    active.ring.set_state(token, _ISSUED)
    if work is None:
        active.complete(token)
        return
    if operation not in _no_future:
        try:
            future = work.get_future()
        except RuntimeError:
            _no_future.add(operation)
        else:
            if waits.unwaited:
                waits.forget(active)
            one = Told((active.ring, token, told))
            told.add(id(one))
            future.add_done_callback(one)
            return
    waits.ends_when_waited(active, token, work)


SOON_S = 0.5
GIL_FREE_SINCE = (2, 13)
"""Torch from which on a process group is known to be destroyed without the GIL."""
WAITS_AT_EXIT, FREES_AT_ONCE = (2, 13), (2, 14)
"""Torch versions in which an interpreter that ends is known to wait for collectives, and not to any more."""


def drain(limit_s: float = SOON_S) -> None:
    """Wait until no thread of a backend still has to call us, or let go of what it was to call. Both take the GIL."""
    waits.let_go()
    _drain(list(_told), limit_s)


def outlast(torch_version: str, groups: Iterable[object]) -> None:
    """The interpreter is about to end, and *groups* are not destroyed.

    A thread of a backend that has to call us after that is ended in the middle of C++, and the process with it, by
    SIGABRT. Torch 2.13 waits for all collectives when the interpreter frees the groups, so the same waiting is done
    here, where it is safe. Others do not wait (2.4 frees no group, 2.14 frees them at once), so neither do we; but 2.4
    would, since our being there changes the order in which things are freed: the groups are kept.
    """
    if not any(_told.values()):
        return
    if WAITS_AT_EXIT <= _known(torch_version) < FREES_AT_ONCE:
        over = False
        while not over:
            # Nothing ends that waiting, and nothing that a signal handler raises may end this one.
            with suppress(BaseException):
                while any(list(_told.values())):
                    time.sleep(0.01)
                over = True
    else:
        import ctypes

        for group in groups:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _known(torch_version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in torch_version.split(".")[:2])


def drain_groups(ids: Collection[int], torch_version: str) -> None:
    """These groups are about to be destroyed, which joins their threads.

    Torch 2.4 does so with the GIL held: what those threads still have to call, they never could, and the process would
    hang. So all of it must be over first, however long that takes: destroying waits for the same collectives.
    """
    _drain(ids, SOON_S if _known(torch_version) >= GIL_FREE_SINCE else math.inf)
    for one in ids:
        if not _told.get(one):
            _told.pop(one, None)


def _drain(ids: Collection[int], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while any(len(_told.get(one, ())) for one in ids) and time.monotonic() < until:
        time.sleep(0.001)


def _over(call: tuple[Told, Any]) -> None:
    """As little as can be: the thread that issues the next collective waits until this one lets go of the GIL."""
    (ring, token, _told_of_group), future = call
    state = _DONE
    try:
        future.value()
    except RuntimeError:
        state = _FAILED
    now = ring.words[LIVE_PROGRESS] = now_ns()
    ring.complete(token, now, state)


_done = callback("collective.done", _over)


class Told(tuple[RingWriter, int, set[int]]):
    """What a backend holds of one collective: it calls it when that is over, and lets go of it.

    A tuple, which takes no call of Python's to make: (ring, token, :func:`told_of` the group, which has its identity).
    A weak set of partial functions would do; it costs the issuing thread three times as much.
    """

    __slots__ = ()

    def __call__(self, future: Any) -> None:
        _done((self, future))

    def __del__(self) -> None:
        self[2].discard(id(self))
