"""``--nvtx``: phases and steps as NVTX ranges, so that Nsight Systems shows them.

Steps are start/end ranges, since their ends need not nest with phases; phases are pushed and popped on the training
thread. Ranges come from torch's own binding, or from the package ``nvtx`` where torch was built without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ddiag.capture.door import guarded
from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Phase
from ddiag.schema.ring import NO_NAME

DOMAIN = "ddiag"


class Ranges:
    """Where ranges go."""

    def __init__(self, push: Callable[[str], Any], pop: Callable[[], Any], start: Any, end: Any, source: str) -> None:
        self.push, self.pop, self.start, self.end, self.source = push, pop, start, end, source


def find_ranges() -> Ranges | None:
    """torch's binding, else the package ``nvtx``; None where neither is."""
    torch = sys.modules.get("torch")
    bound = getattr(getattr(torch, "_C", None), "_nvtx", None)
    if bound is not None and all(
        hasattr(bound, name) for name in ("rangePushA", "rangePop", "rangeStartA", "rangeEnd")
    ):
        return Ranges(bound.rangePushA, bound.rangePop, bound.rangeStartA, bound.rangeEnd, "torch")
    try:
        import nvtx
    except ImportError:
        return None

    def push(name: str) -> None:
        nvtx.push_range(name, domain=DOMAIN)

    def pop() -> None:
        nvtx.pop_range(domain=DOMAIN)

    def start(name: str) -> Any:
        return nvtx.start_range(name, domain=DOMAIN)

    return Ranges(push, pop, start, nvtx.end_range, "nvtx")


def mark_phases(active: Recorder, ranges: Ranges | None = None) -> None:
    """From now on *active* marks phases and steps."""
    ranges = ranges or find_ranges()
    if ranges is None:
        active.facts.write("nvtx", source=None, why="neither torch nor the package nvtx can mark ranges here")
        return
    active.facts.write("nvtx", source=ranges.source)
    _Marker(active, ranges)


class _Marker:
    """Stands in for ``active.enter`` and ``active.leave``; only a recorder that marks pays for it."""

    def __init__(self, active: Recorder, ranges: Ranges) -> None:
        self._active = active
        self._ranges = ranges
        self._pushed: list[int] = []
        """Tokens of phases whose ranges are open."""
        self._step = ranges.start(f"step {active.step}")
        self._enter, self._leave = active.enter, active.leave
        self._push, self._pop = guarded("nvtx.push", self._push_range), guarded("nvtx.pop", self._pop_to)
        active.enter = self.enter  # type: ignore[method-assign]
        active.leave = self.leave  # type: ignore[method-assign]
        active.at_step_end("nvtx.step", self.step_ended)

    def enter(self, phase: int, label_id: int = NO_NAME) -> int:
        token = self._enter(phase, label_id)
        if self._active.on_training_thread():
            self._push(phase, token)
        return token

    def leave(self, token: int, failed: bool = False) -> None:
        if self._active.on_training_thread():
            self._pop(token)
        self._leave(token, failed)

    def _push_range(self, phase: int, token: int) -> None:
        self._pushed.append(token)
        self._ranges.push(Phase(phase).name.lower())

    def _pop_to(self, token: int) -> None:
        """Close the range of *token* and whatever an exception left open inside it."""
        if token in self._pushed:
            last = -1
            while last != token:
                last = self._pushed.pop()
                self._ranges.pop()

    def step_ended(self, _totals: StepTotals) -> None:
        self._ranges.end(self._step)
        self._step = self._ranges.start(f"step {self._active.step + 1}")
