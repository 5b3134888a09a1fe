"""What the training thread is doing: a stack of phases, and the time spent in each and in none nested in it."""

from __future__ import annotations

import threading
from threading import get_ident
from types import TracebackType
from typing import Literal

from ddiag.capture.clock import now_ns
from ddiag.capture.pace import MEMORY_SHARE, Pace
from ddiag.capture.ring import END_WORD, HEADER_WORDS, RECORD_WORDS, STATE_WORD, UPPER_HALF, RingWriter
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Flag, Kind, Phase, State
from ddiag.schema.ring import (
    HEAD,
    LIVE_MICRO_STEP,
    LIVE_PHASE,
    LIVE_PHASE_SINCE,
    LIVE_PROGRESS,
    LIVE_STEP,
    NO_DTYPE,
    NO_NAME,
)
from ddiag.schema.steps import StepFlag

_PHASE, _OPEN, _DONE, _FAILED = int(Kind.PHASE), int(State.OPEN), int(State.DONE), int(State.FAILED)
_NONE, _FORWARD, _BACKWARD, _OPTIMIZER = int(Phase.NONE), int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER)
_EVALUATION = int(Phase.EVALUATION)
_DEEPEST = 64
"""More phases are never open at once: whatever ends them has been switched off."""
_STEP_FLAGS = {
    int(Phase.EVALUATION): int(StepFlag.EVALUATION),
    int(Phase.CHECKPOINT): int(StepFlag.CHECKPOINT),
    int(Phase.LOGGING): int(StepFlag.LOGGING),
    int(Phase.COMPILE): int(StepFlag.COMPILED),
}


class PhaseClock:
    """Phases of one process; only those of the training thread count for the step."""

    def __init__(self, ring: RingWriter, began_ns: int) -> None:
        self.ring = ring
        self._bind_ring()
        self.thread = get_ident()
        """Python's number of the training thread."""
        self.tid = threading.get_native_id()
        """Its native id."""
        self._own = threading.local()
        self.step = 0
        self.current_phase = _NONE
        self.micro_step = 0
        self.totals = StepTotals(began_ns)
        self._memory_pace = Pace(MEMORY_SHARE)
        self._since = began_ns
        self._untouched = True
        self._open: list[tuple[int, int]] = []
        """(token, phase) of the training thread, outermost first."""
        self._forward_seen = False
        self.eval_called = False
        """The user has called ``Module.eval()``, and nothing has been trained since."""
        self.last_source = 0
        self.training_source = 0
        """Identity of the data set whose batches were last trained on."""
        self._live(began_ns)

    # -- phases ------------------------------------------------------------------------------------------------------

    def enter(self, phase: int, label_id: int = NO_NAME) -> int:
        """The calling thread begins *phase*; returns the token for :meth:`leave`.

        Only the training thread's phases count for the step; those of other threads are records and nothing else.
        """
        now = now_ns()
        if get_ident() != self.thread:
            return self._phase_record(phase, now, now, 0, 0, _OPEN, label_id, self._tid())
        if self._untouched:
            self._begin_first_step(now)
        totals = self.totals
        totals.phase_ns[self.current_phase] += now - self._since
        # ``ring.begin`` by hand: between a step's kernels, caches cold, a call costs more than what it does.
        words, token = self._words, self._next()
        word = HEADER_WORDS + token % self._capacity * RECORD_WORDS
        words[word] = 0
        # fmt: off
        self._pack(
            self._map, (word << 3) + 8, _PHASE, phase, 0, NO_NAME, label_id, self.step, phase, NO_DTYPE, -1, -1,
            now, now, 0, 0, 0, self.tid, 0.0, _OPEN, self.micro_step,
        )
        # fmt: on
        words[word] = words[HEAD] = token + 1
        stack = self._open
        if len(stack) >= _DEEPEST:
            stack.clear()
        stack.append((token, phase))
        self._since = now
        self.current_phase = phase
        if phase == _FORWARD:
            self._forward_seen = True
        elif phase in _STEP_FLAGS:
            totals.flags |= _STEP_FLAGS[phase]
        words[LIVE_PHASE] = phase
        words[LIVE_PHASE_SINCE] = words[LIVE_PROGRESS] = now
        totals.mark_ns += now_ns() - now
        return token

    def _begin_first_step(self, now: int) -> None:
        """The first step begins with its first phase: what came before built the model and the loaders."""
        self._untouched = False
        totals = self.totals
        totals.start_ns = self._since = now
        totals.comm_count = totals.comm_bytes = totals.comm_wait_ns = 0

    def leave(self, token: int, failed: bool = False) -> None:
        """End the phase of *token*, and whatever was left open inside it (an exception passed by)."""
        if token < 0:
            return
        now = now_ns()
        if get_ident() != self.thread:
            self.ring.complete(token, now, _FAILED if failed else _DONE)
            return
        totals, stack, words = self.totals, self._open, self._words
        totals.phase_ns[self.current_phase] += now - self._since
        self._since = now
        if stack and stack[-1][0] == token:
            del stack[-1]
        else:
            self._unwind(token)
        words[LIVE_PHASE] = self.current_phase = stack[-1][1] if stack else _NONE
        words[LIVE_PHASE_SINCE] = words[LIVE_PROGRESS] = now
        # ``ring.complete`` by hand.
        word = HEADER_WORDS + token % self._capacity * RECORD_WORDS
        if words[word] == token + 1:
            words[word + END_WORD] = now
            word += STATE_WORD
            words[word] = words[word] & UPPER_HALF | (_FAILED if failed else _DONE)
        totals.mark_ns += now_ns() - now

    def phase(self, phase: int) -> PhaseSpan:
        """``with active.phase(Phase.LOGGING): …`` for slow paths."""
        return PhaseSpan(self, phase)

    def in_phase(self, phase: int) -> bool:
        """The training thread (asked from it) is in *phase*, at whatever depth; other threads: never."""
        if get_ident() != self.thread:
            return False
        # No generator: this is asked at every mark, and the stack is a few phases deep.
        for _, one in self._open:  # noqa: SIM110
            if one == phase:
                return True
        return False

    @property
    def training(self) -> bool:
        """The first phase has begun."""
        return not self._untouched

    def on_training_thread(self) -> bool:
        return get_ident() == self.thread

    def _unwind(self, token: int) -> None:
        """Close what was left open inside the phase of *token*, and it."""
        stack = self._open
        if any(one == token for one, _ in stack):
            while stack.pop()[0] != token:
                pass

    def _phase_record(
        self, phase: int, enqueue: int, start: int, end: int, flags: int, state: int, label_id: int, tid: int
    ) -> int:
        # fmt: off
        return self._begin(
            _PHASE, phase, flags, NO_NAME, label_id, self.step, phase, NO_DTYPE, -1, -1, enqueue, start, end,
            0, 0, tid, 0.0, state, self.micro_step,
        )
        # fmt: on

    # -- forward, backward, evaluation -------------------------------------------------------------------------------

    def begin_backward(self) -> int | None:
        """The token for :meth:`end_backward`; None inside another backward (recomputation), or on another thread."""
        if get_ident() != self.thread:
            return None
        if self._open:
            if self.in_phase(_BACKWARD):
                return None
            self._leave_stale(_FORWARD)
            self.resume_training()
        self.training_source, self.eval_called = self.last_source, False
        if not (self._forward_seen or self._untouched) and self.current_phase in (_NONE, _OPTIMIZER):
            self._infer_forward(now_ns())
        if self._memory_pace.on:
            self.sample_peaks()
        return self.enter(_BACKWARD)

    def end_backward(self, token: int, *, failed: bool) -> None:
        self.leave(token, failed)
        self._forward_seen = False
        if not failed:
            self.totals.micro_steps += 1
            self.micro_step += 1
            self._words[LIVE_MICRO_STEP] = self.micro_step

    def _infer_forward(self, now: int) -> None:
        """Nothing marks a plain module's forward without touching every module: it is the time since the last mark."""
        self.totals.phase_ns[_FORWARD] += now - self._since
        self._phase_record(_FORWARD, self._since, self._since, now, Flag.INFERRED, _DONE, NO_NAME, self.tid)
        self._since = now

    def asks_for_data(self, source: int, *, grad: bool) -> None:
        """The training thread asks the data set *source* for a batch, with gradients on or off.

        With them off this is evaluation; with them on it is when the user has called ``eval()`` and this is not the
        data set that training uses.
        """
        self.last_source = source
        if not grad or (self.eval_called and source != self.training_source):
            if not self._open:
                self.enter(_EVALUATION)
        else:
            self.resume_training()

    def begin_forward(self, *, grad: bool, training: bool) -> int | None:
        """The outermost module that marks itself is called; None when that is part of something else."""
        if get_ident() != self.thread or (self._open and (self.in_phase(_FORWARD) or self.in_phase(_BACKWARD))):
            return None
        if not grad and not training:
            if not self._open:
                self.enter(_EVALUATION)
            return None
        if self._open:
            self.resume_training()
        return self.enter(_FORWARD)

    def resume_training(self) -> None:
        """A sign of training: an evaluation that is open is over."""
        if self._open and self._open[0][1] == _EVALUATION:
            self.leave(self._open[0][0])

    def _leave_stale(self, phase: int) -> None:
        """*phase* cannot be open here: whoever opened it was left by an exception."""
        for token, one in self._open:
            if one == phase:
                self.leave(token, failed=True)
                return

    def sample_peaks(self) -> None:
        """Memory is high here: before backward and before the optimizer."""
        raise NotImplementedError

    # -- the thread --------------------------------------------------------------------------------------------------

    def _adopt_thread(self) -> None:
        """Training runs on another thread than the one that activated us."""
        self.thread = get_ident()
        self.tid = threading.get_native_id()
        self._open.clear()
        self.current_phase = _NONE

    def _tid(self) -> int:
        """Native id of the calling thread (asking the kernel each time would double the cost of a record)."""
        try:
            tid: int = self._own.tid
        except AttributeError:
            tid = self._own.tid = threading.get_native_id()
        return tid

    def _live(self, now: int) -> None:
        words = self._words
        words[LIVE_STEP], words[LIVE_PHASE], words[LIVE_MICRO_STEP] = self.step, self.current_phase, self.micro_step
        words[LIVE_PHASE_SINCE] = words[LIVE_PROGRESS] = now

    def _bind_ring(self) -> None:
        """What is called at every mark, found once."""
        ring = self.ring
        self._words, self._begin, self._capacity = ring.words, ring.begin, ring.capacity
        self._map, self._pack, self._next = ring.memory, ring.pack, ring.next


class PhaseSpan:
    """A phase as a context manager."""

    __slots__ = ("_clock", "_phase", "_token")

    def __init__(self, clock: PhaseClock, phase: int) -> None:
        self._clock = clock
        self._phase = phase
        self._token = -1

    def __enter__(self) -> None:
        self._token = self._clock.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._clock.leave(self._token, kind is not None)
        return False
