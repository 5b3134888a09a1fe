"""The host waits for a collective: ``Work.wait`` called from Python. What is waited is exposed on a host backend.

C++ that waits (DDP's reducer at the end of backward) is not seen here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import around
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Flag, Kind, Op

native_waited: Callable[[Any, int, bool], None] | None = None
"""The native kernel's ``waited(work, wait_ns, ok)``, while it runs."""

_COLLECTIVE, _WAIT, _END_IS_WAIT = int(Kind.COLLECTIVE), int(Op.WAIT), int(Flag.END_IS_WAIT)
_END_UNKNOWN = int(Flag.END_UNKNOWN)


class _Issued(threading.local):
    """The calling thread's last collective, when its end can only be seen by waiting for it."""

    token = -1
    group = -1


_issued = _Issued()


def install(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.Work, "wait", lambda original: around(original, "wait", _before, _after))


def ends_when_waited(active: recorder.Recorder, token: int, group: int) -> None:
    """*token* was just issued by this thread and has no future."""
    forget(active)
    _issued.token = token
    _issued.group = group


def forget(active: recorder.Recorder) -> None:
    """Another collective was issued: the next wait need not be for the last one."""
    token, _issued.token = _issued.token, -1
    if token >= 0:
        active.ring.add_flags(token, _END_UNKNOWN)


def _before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[recorder.Recorder, Any, int, int, int] | None:
    active = recorder.current
    if active is None:
        return None
    issued, _issued.token = _issued.token, -1
    return active, args[0], issued, active.begin_span(_COLLECTIVE, _WAIT, -1, _issued.group), now_ns()


def _after(token: tuple[recorder.Recorder, Any, int, int, int], result: Any, failed: bool) -> None:
    active, work, issued, span, began = token
    ok = not failed and result is not False
    active.complete(span, ok)
    took = now_ns() - began
    training = active.on_training_thread()
    if issued >= 0:
        active.complete(issued, ok, flags=_END_IS_WAIT)
    if native_waited is not None:
        native_waited(work, took if training else 0, ok)
    elif training:
        active.waited(took)
