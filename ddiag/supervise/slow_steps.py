"""``--profile-slow``: asks all ranks for a profiler window when steps have become slow and stay so, or when single
steps are outliers again and again.

The sampler looks at the step summaries of one rank (all ranks of a job step together). A window follows some steps
after the slow ones, since every rank must have read the request before its first step; so a single slow step, which
says nothing about the next, asks for nothing.
"""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from statistics import mean, median

from ddiag.errors import InputError
from ddiag.schema.folder import ProcessFiles, find_processes
from ddiag.schema.profile import ProfileRequest, write_request
from ddiag.schema.steps import HEADER_BYTES, RECORD_BYTES, StepFlag, StepRecord, unpack
from ddiag.supervise.outlier_steps import OutlierSteps

MAX_WINDOWS = 3
WINDOW_STEPS = 3
SLOWER = 1.5
"""How many times the usual duration is slow."""
_USUAL_STEPS, _SLOW_STEPS = 40, 8
_NOTICE_S = 2.0
"""Ranks look for requests once a second; a folder on a slow file system takes longer to show one."""
_EXPLAINED = StepFlag.EVALUATION | StepFlag.CHECKPOINT | StepFlag.COMPILED | StepFlag.PROFILED
"""Steps that are longer for a reason that is known without a profile."""


def _after(newest: int, step_s: float) -> int:
    """The first step that begins when every rank has read a request made after step *newest*."""
    return newest + 2 + math.ceil(_NOTICE_S / step_s)


class SlowSteps:
    """Watches one rank of a run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: ProcessFiles | None = None
        self._read_bytes = HEADER_BYTES
        self._windows = 0
        self._outliers = OutlierSteps()
        self._forget()

    def _forget(self) -> None:
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._recent: deque[float] = deque(maxlen=_SLOW_STEPS)
        self._outliers.forget()

    def look(self) -> ProfileRequest | None:
        """Read what is new; the request that was written because of it."""
        if self._windows >= MAX_WINDOWS:
            return None
        request, new = None, self._new_steps()
        for step in new:
            if step.flags & _EXPLAINED:
                continue
            seconds = (step.end_ns - step.start_ns) / 1e9
            outlier = self._known() and self._outliers.take(step.step, seconds, median(self._usual))
            self._take(seconds)
            wanted = self._wanted(step.step, new[-1].step, outlier=outlier) if self._known() else None
            if wanted is not None and self._windows < MAX_WINDOWS:
                request = self._ask(wanted)
        return request

    def _take(self, seconds: float) -> None:
        """What is no longer recent becomes usual."""
        if len(self._recent) == _SLOW_STEPS:
            self._usual.append(self._recent[0])
        self._recent.append(seconds)

    def _known(self) -> bool:
        """How long a step usually takes is known."""
        return len(self._usual) == _USUAL_STEPS and len(self._recent) == _SLOW_STEPS

    def _wanted(self, step: int, newest: int, *, outlier: bool) -> ProfileRequest | None:
        """A window worth asking for because of *step*, where *newest* is the last that is known to have ended."""
        now_s, before_s = median(self._recent), median(self._usual)
        if now_s > SLOWER * before_s:  # half of the recent steps and more are slow
            first = _after(newest, now_s)
            reason = f"steps up to {step} take {1e3 * now_s:.4g} ms instead of {1e3 * before_s:.4g} ms"
            return ProfileRequest(first, first + WINDOW_STEPS - 1, reason)
        if not outlier:
            return None
        expected = self._outliers.expected(_after(newest, mean([*self._usual, *self._recent])), before_s, WINDOW_STEPS)
        return ProfileRequest(expected.first, expected.last, expected.reason) if expected is not None else None

    def _ask(self, request: ProfileRequest) -> ProfileRequest:
        write_request(self._run, request)
        self._windows += 1
        self._forget()
        return request

    def _new_steps(self) -> list[StepRecord]:
        """Steps of the watched rank that have ended since the last look."""
        files = self._watched()
        if files is None:
            return []
        try:
            with files.steps.open("rb") as file:
                head = file.read(HEADER_BYTES)
                file.seek(self._read_bytes)
                new = file.read()
            found = unpack(head + new[: len(new) // RECORD_BYTES * RECORD_BYTES])
        except (OSError, InputError):
            return []  # not there yet
        self._read_bytes += len(found) * RECORD_BYTES
        return found

    def _watched(self) -> ProcessFiles | None:
        """The lowest rank of the newest attempt."""
        found = find_processes(self._run)
        if not found:
            return None
        newest = next(files for files in found if files.attempt == found[-1].attempt)
        if newest != self._files:
            self._files = newest
            self._read_bytes = HEADER_BYTES
            self._forget()
        return newest
