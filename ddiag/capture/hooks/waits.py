"""The host waits for a collective: ``Work.wait`` called from Python. What is waited is exposed on a host backend.

C++ that waits (DDP's reducer at the end of backward) is not seen here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddiag.capture import door, recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Flag

SHORTEST_NS = 20_000
"""A shorter wait is none: the collective was over."""
native_waited: Callable[[Any, int, bool], None] | None = None
"""The native kernel's ``waited(work, began_ns, ok)``, which does all of this, while it runs."""

_END_IS_WAIT, _END_UNKNOWN = int(Flag.END_IS_WAIT), int(Flag.END_UNKNOWN)


class _Issued(threading.local):
    """The calling thread's last collective, when its end can only be seen by waiting for it."""

    token = -1
    work: Any = None
    """What the user waits for: the same object, as long as somebody has it. Kept until the thread's next call only."""


issued = _Issued()
unwaited: set[int] = set()
"""Threads that have one, or ended with one: to be asked before :data:`issued`, which is dear to read."""


def install(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.Work, "wait", _observed)


def ends_when_waited(active: recorder.Recorder, token: int, work: Any) -> None:
    """*token* was just issued by this thread and has no future."""
    forget(active)
    issued.token, issued.work = token, work
    unwaited.add(threading.get_ident())


def let_go() -> None:
    """The recording ends: keep nothing of the calling thread's last call."""
    _taken()


def forget(active: recorder.Recorder) -> None:
    """Another collective was issued: the next wait need not be for the last one."""
    token = _taken()
    if token >= 0:
        active.ring.add_flags(token, _END_UNKNOWN)


def _taken() -> int:
    """The calling thread's, which is none any more; -1 when it has none."""
    token = issued.token
    if token >= 0:
        issued.token, issued.work = -1, None
        unwaited.discard(threading.get_ident())
    return token


def _observed(original: Callable[..., Any]) -> Callable[..., Any]:
    """``door.around`` by hand: a wait happens as often as a collective, and must cost as little."""
    finish = door.callback("Work.wait", _finish)

    @functools.wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        active = recorder.current
        if active is None or door.compiling():
            return original(work, *args, **kwargs)
        began = now_ns()
        try:
            result = original(work, *args, **kwargs)
        except BaseException:
            finish((active, work, began, False))
            raise
        finish((active, work, began, result is not False))
        return result

    return wait


def _finish(wait: tuple[recorder.Recorder, Any, int, bool]) -> None:
    active, work, began, ok = wait
    if native_waited is not None:
        native_waited(work, began, ok)
        return
    ended = now_ns()
    token = _taken() if unwaited and issued.work is work else -1
    if token >= 0:
        active.complete(token, ok, flags=_END_IS_WAIT)
    if ended - began >= SHORTEST_NS:
        active.waited_for(began, ended, ok=ok)
