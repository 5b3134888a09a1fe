"""``--profile-slow``: asks all ranks for a profiler window when steps have become slow and stay so.

The sampler looks at the step summaries of one rank (all ranks of a job step together). A window follows some steps
after the slow ones, since every rank must have read the request before its first step; so a single slow step asks for
nothing.
"""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from statistics import median

from ddiag.errors import InputError
from ddiag.schema.folder import ProcessFiles, find_processes
from ddiag.schema.profile import ProfileRequest, write_request
from ddiag.schema.steps import HEADER_BYTES, RECORD_BYTES, StepFlag, StepRecord, unpack

MAX_WINDOWS = 3
WINDOW_STEPS = 3
SLOWER = 1.5
"""How many times the usual duration is slow."""
_USUAL_STEPS, _SLOW_STEPS = 40, 8
_NOTICE_S = 2.0
"""Ranks look for requests four times a second; a folder on a slow file system takes longer to show one."""
_EXPLAINED = StepFlag.EVALUATION | StepFlag.CHECKPOINT | StepFlag.COMPILED | StepFlag.PROFILED
"""Steps that are longer for a reason that is known without a profile."""


class SlowSteps:
    """Watches one rank of a run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: ProcessFiles | None = None
        self._read_bytes = HEADER_BYTES
        self._windows = 0
        self._forget()

    def _forget(self) -> None:
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._recent: deque[float] = deque(maxlen=_SLOW_STEPS)

    def look(self) -> ProfileRequest | None:
        """Read what is new; the request that was written because of it."""
        if self._windows >= MAX_WINDOWS:
            return None
        request = None
        for step in self._new_steps():
            if not step.flags & _EXPLAINED:
                self._take((step.end_ns - step.start_ns) / 1e9)
            if self._windows < MAX_WINDOWS and self._slow():
                request = self._ask(step)
        return request

    def _take(self, seconds: float) -> None:
        """What is no longer recent becomes usual."""
        if len(self._recent) == _SLOW_STEPS:
            self._usual.append(self._recent[0])
        self._recent.append(seconds)

    def _slow(self) -> bool:
        """Half of the recent steps and more are slow."""
        full = len(self._usual) == _USUAL_STEPS and len(self._recent) == _SLOW_STEPS
        return full and median(self._recent) > SLOWER * median(self._usual)

    def _ask(self, step: StepRecord) -> ProfileRequest:
        now_s, before_s = median(self._recent), median(self._usual)
        first = step.step + 2 + math.ceil(_NOTICE_S / now_s)
        reason = f"steps up to {step.step} take {1e3 * now_s:.4g} ms instead of {1e3 * before_s:.4g} ms"
        request = ProfileRequest(first, first + WINDOW_STEPS - 1, reason)
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
