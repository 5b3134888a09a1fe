"""Pauses of Python's garbage collector, through ``gc.callbacks``."""

from __future__ import annotations

import gc
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import guarded
from ddiag.schema.phases import Pause

WORTH_A_RECORD_NS = 200_000
"""Shorter ones are only added up: there may be hundreds per step."""

_began_ns = 0


def activated(_active: recorder.Recorder) -> None:
    from ddiag.capture.activate import ACTIVATION

    if _callback not in gc.callbacks:
        gc.callbacks.append(_callback)
        ACTIVATION.patches.undo_with(_remove)


def _remove() -> None:
    if _callback in gc.callbacks:
        gc.callbacks.remove(_callback)


def _collecting(phase: str, info: dict[str, Any]) -> None:
    global _began_ns
    active = recorder.current
    if active is None or not active.training:
        return
    if phase == "start":
        _began_ns = now_ns()
        return
    began, _began_ns = _began_ns, 0
    if not began:
        return
    took = now_ns() - began
    totals = active.totals
    totals.gc_ns += took
    totals.gc_count += 1
    if took >= WORTH_A_RECORD_NS:
        active.pause(Pause.GC, began, float(info.get("generation", -1)))


_callback = guarded("gc", _collecting)
