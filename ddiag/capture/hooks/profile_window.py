"""Records some steps with torch.profiler, on all ranks the same ones, because somebody asked for it.

The request lies in the run folder (:mod:`ddiag.schema.profile`) and is looked for when a step ends, at most once a
second. A profiler of the user's goes first: a window does not begin while one runs, and is given up when one starts.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from ddiag.capture.clock import now_ns
from ddiag.capture.door import DOOR, guarded
from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Mark
from ddiag.schema.profile import ProfileRequest, read_request, request_file, trace_file
from ddiag.schema.steps import StepFlag

_LOOK_EVERY_NS = 10**9
_STARTERS = ("_prepare_profiler", "_enable_profiler")
"""What every way to start a profiler goes through, in ``torch.autograd.profiler``."""


def watch(active: Recorder, run: Path) -> None:
    """Look for requests whenever a step of *active* ends; one for its very first step is there already."""
    window = ProfileWindow(active, run)
    active.at_step_end("profile window", window.step_ended)
    active.at_close("profile window", window.closed)
    window.look()
    window.begin_if_due(active.step)


class ProfileWindow:
    """Of one process: nothing asked, a request that waits for its first step, or a running profiler."""

    def __init__(self, active: Recorder, run: Path) -> None:
        self._active = active
        self._run = run
        self._path = request_file(run)
        self._version = 0
        self._looked_ns = 0
        self._request: ProfileRequest | None = None
        self._profiler: Any = None
        self._step_range: Any = None
        self._starters: dict[str, Any] = {}
        self._wrote_now = False

    def step_ended(self, totals: StepTotals) -> int | None:
        """A step of the training thread is over; when to come again, None: after the next."""
        step = self._active.step
        if self._wrote_now:
            self._wrote_now = False
            totals.flags |= StepFlag.PROFILED  # the trace of the window was written during this step
        if self._profiler is not None:
            totals.flags |= StepFlag.PROFILED
            self._next_or_end(step)
        elif self._request is None:
            self.look()
        if self._profiler is None:
            self.begin_if_due(step + 1)
        idle = self._request is None and self._profiler is None and not self._wrote_now
        return self._looked_ns + _LOOK_EVERY_NS if idle else None

    def look(self) -> None:
        """Whether there is a new request."""
        now = now_ns()
        if now - self._looked_ns < _LOOK_EVERY_NS:
            return
        self._looked_ns = now
        try:
            version = os.stat(self._path).st_mtime_ns  # noqa: PTH116 - hot path
        except OSError:
            return
        if version != self._version:
            self._version = version
            self._request = read_request(self._path)

    def begin_if_due(self, upcoming: int) -> None:
        """Start when *upcoming* is the first step asked for; give up when it has passed."""
        request = self._request
        if request is None or upcoming < request.first:
            return
        if upcoming > request.first:
            self._leave_out("its first step had passed when this rank read the request")
        elif _profiler_runs():
            self._leave_out("another profiler was running")
        else:
            self._begin(request)

    def _begin(self, request: ProfileRequest) -> None:
        from torch import profiler

        activities = [profiler.ProfilerActivity.CPU]
        torch = sys.modules["torch"]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        began = now_ns()
        running = profiler._KinetoProfile(activities=activities)
        running.start()
        self._profiler = running
        self._yield_to_others()
        self._mark_step(request.first)
        self._active.mark(Mark.PROFILE_START, request.first)
        self._active.facts.write(
            "profile_window", first=request.first, last=request.last, reason=request.reason, start_ns=now_ns() - began
        )

    def _mark_step(self, step: int) -> None:
        self._step_range = sys.modules["torch"].profiler.record_function(f"ProfilerStep#{step}")
        self._step_range.__enter__()

    def _next_or_end(self, step: int) -> None:
        request = self._request
        self._step_range.__exit__(None, None, None)
        if request is not None and step < request.last:
            self._mark_step(step + 1)
        else:
            self._end(request)

    def closed(self) -> None:
        """The recording ends, with the job as a rule: torch crashes when a profiler runs while the interpreter goes."""
        if self._profiler is None:
            return
        self._step_range.__exit__(None, None, None)
        if self._request is not None and self._active.step <= self._request.first:
            self._leave_out("the recording ended in its first step")
        self._end(self._request, at_once=True)

    def _end(self, request: ProfileRequest | None, *, at_once: bool = False) -> None:
        """Stop, and write the trace (on all ranks at the same time, so that none waits for another).

        *at_once*: pack it here, since no thread can be started any more.
        """
        began = now_ns()
        running = self._let_go()
        running.stop()
        self._active.mark(Mark.PROFILE_END)
        if request is None:
            return
        identity = self._active.identity
        target = trace_file(self._run, rank=identity.rank, request=request, attempt=identity.attempt)
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = target.with_name(f".{target.name}.{os.getpid()}.json")
        running.export_chrome_trace(str(raw))
        self._wrote_now = True
        self._active.facts.write("profile_written", path=target.name, blocked_ns=now_ns() - began)
        if at_once:
            _pack(raw, target)
        else:
            threading.Thread(target=guarded("profile window", _pack), args=(raw, target), name="ddiag-pack").start()

    def _let_go(self) -> Any:
        """Nothing is asked, nothing runs; returns what did."""
        running, self._profiler, self._request = self._profiler, None, None
        module = sys.modules["torch.autograd.profiler"]
        for name, (original, ours) in self._starters.items():
            if getattr(module, name, None) is ours:
                setattr(module, name, original)
        self._starters.clear()
        return running

    def _yield_to_others(self) -> None:
        """Should the user start a profiler now, ours ends first, since torch allows only one."""
        module = sys.modules["torch.autograd.profiler"]
        for name in _STARTERS:
            original = getattr(module, name, None)
            if original is not None:
                ours = self._stepping_aside(original)
                setattr(module, name, ours)
                self._starters[name] = (original, ours)

    def _stepping_aside(self, original: Any) -> Any:
        give_up = guarded("profile window", self._give_up)

        def start(*args: Any, **kwargs: Any) -> Any:
            give_up()
            return original(*args, **kwargs)

        return start

    def _give_up(self) -> None:
        if self._profiler is None:
            return
        self._step_range.__exit__(None, None, None)
        self._leave_out("the user's own profiler started")
        self._let_go().stop()

    def _leave_out(self, why: str) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._active.facts.write("profile_left_out", first=request.first, last=request.last, why=why)


def _profiler_runs() -> bool:
    module = sys.modules.get("torch.autograd.profiler")
    enabled = getattr(sys.modules["torch"]._C._autograd, "_profiler_enabled", None)
    return bool(getattr(module, "_is_profiler_enabled", False)) or bool(enabled is not None and enabled())


def _pack(raw: Path, target: Path) -> None:
    """Compress beside the training (zlib lets go of the GIL); the trace appears whole."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with raw.open("rb") as source, gzip.open(beside, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(source, packed, 1 << 20)
        beside.replace(target)
    except OSError as error:
        DOOR.failed(DOOR.hook("profile window"), error)
        with contextlib.suppress(OSError):
            beside.unlink()
    finally:
        with contextlib.suppress(OSError):
            raw.unlink()
