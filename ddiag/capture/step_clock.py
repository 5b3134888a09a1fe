"""Where one training step ends and the next begins, and what a finished step adds up to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ddiag.capture.boundaries import Boundaries, Turn
from ddiag.capture.clock import now_ns
from ddiag.capture.door import guarded
from ddiag.capture.phase_clock import PhaseClock
from ddiag.capture.ring import RingWriter
from ddiag.capture.step_file import StepWriter
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Kind, Mark, Phase, State
from ddiag.schema.ring import (
    COUNTED_BYTES,
    COUNTED_CALLS,
    COUNTED_WAIT_NS,
    HEAD,
    LIVE_MICRO_STEP,
    LIVE_OVERHEAD,
    LIVE_STEP,
    NO_DTYPE,
    NO_NAME,
)
from ddiag.schema.steps import StepFlag

_SEVERAL = int(StepFlag.SEVERAL_OPTIMIZERS)
_NONE, _OPTIMIZER = int(Phase.NONE), int(Phase.OPTIMIZER)
_STEP, _DONE = int(Kind.STEP), int(State.DONE)
_CLOSE = Turn.CLOSE

_DEEPEST = 64
_WRAPPED_MARKS = 1.3
"""What marks cost beyond what they measure of themselves: the stand-ins around them."""
_UNSEEN_CALL_NS = 2_500
"""What a collective costs the training thread that is counted outside Python (tier native), caches cold."""

_IDLE_NS = 10**9
"""With nothing to call at the end of a step, so long until that is asked again."""

Sampler = Callable[[StepTotals], int | None]
"""Called with the totals of a step that ends; returns the time (ns) before which it need not be called again, None for
the end of the next step."""
MemorySampler = Callable[[StepTotals], None]


class StepClock(PhaseClock):
    """Steps of one process."""

    def __init__(self, ring: RingWriter, began_ns: int, summaries: StepWriter) -> None:
        super().__init__(ring, began_ns)
        self._summaries = summaries
        self._optimizers: list[tuple[int, int]] = []
        """(identity, token of its phase) of optimizers inside their step, outermost first."""
        self._boundaries = Boundaries()
        self._held: tuple[StepTotals, int] | None = None
        """The first step and its end, until it is known whether it was one."""
        self._samplers: list[Callable[..., int | None]] = []
        self._due_ns: list[int] = []
        """When each of them wants to be called next."""
        self._first_due_ns = 0
        self._memory_samplers: list[Callable[..., object]] = []
        self._peak_samplers: list[Callable[..., object]] = []
        self.optimizer_posts = 0
        """Steps optimizers finished, whatever they mean for the training step."""
        self._overhead_ns = 0
        self.counted_outside = False
        """Set by a tier that counts outside Python, in the words COUNTED_… of the ring."""
        self._counted = (0, 0, 0)
        """What those words were when the step began."""

    # -- optimizers and the end of a step ----------------------------------------------------------------------------

    def begin_optimizer(self, optimizer: int) -> None:
        """*optimizer* (its identity) begins a step; :meth:`end_optimizer` ends it.

        Steps nest: GradScaler.step and ZeroRedundancyOptimizer call another optimizer; only the outermost counts.
        """
        if threading.get_ident() != self.thread:
            self._adopt_thread()
            self._optimizers.clear()
        if len(self._optimizers) >= _DEEPEST:
            self._optimizers.clear()
        if self._optimizers and self.current_phase != _OPTIMIZER and not self.in_phase(_OPTIMIZER):
            # What began before never ended: an exception passed by.
            self._optimizers.clear()
        if not self._optimizers:
            if self._open:
                self.resume_training()
            if self._memory_pace.on:
                self.sample_peaks()
        self._optimizers.append((optimizer, -1 if self.current_phase == _OPTIMIZER else self.enter(_OPTIMIZER)))

    def end_optimizer(self, optimizer: int, *, skipped: bool = False, failed: bool = False) -> None:
        """*optimizer* has stepped, or (GradScaler) was made to skip; those left open inside it failed."""
        while self._optimizers:
            one, token = self._optimizers.pop()
            self.leave(token, failed)
            if one == optimizer:
                break
        else:
            return
        if self._optimizers or failed:
            return
        if skipped:
            self._skipped()
        turn = self._boundaries.after(optimizer)
        if turn is _CLOSE:
            self._close_step(now_ns())
        else:
            self._turn(turn, now_ns())

    def forget_optimizers(self) -> None:
        """The loop is at its top (it asks for a batch): what never ended was left by an exception."""
        if self.current_phase == _NONE:
            self._optimizers.clear()

    def expect_engine(self) -> None:
        """An engine will say where steps end, so that its optimizers' steps end none, not even the first."""
        if self._held is None:
            self._boundaries.leave_to_engine()

    def retire_optimizer(self, optimizer: int) -> None:
        """*optimizer* was destroyed (another may get its identity)."""
        if self._boundaries.retire(optimizer):
            self._write_held()

    def engine_step(self, *, skipped: bool = False) -> None:
        """An engine (DeepSpeed) or the user says: here a training step ends. From now on optimizers do not."""
        if not self._boundaries.by_engine:
            if self._held is not None:
                self._merge_held()
            self._boundaries.leave_to_engine()
        self.totals.flags |= StepFlag.ENGINE_BOUNDARY
        if skipped:
            self._skipped()
        self._close_step(now_ns())

    def _skipped(self) -> None:
        now = now_ns()
        self.totals.flags |= StepFlag.OPTIMIZER_SKIPPED
        # fmt: off
        self._begin(
            Kind.MARK, Mark.OPTIMIZER_SKIPPED, 0, NO_NAME, NO_NAME, self.step, self.current_phase, NO_DTYPE, -1, -1,
            now, now, now, 0, 0, self.tid, 0.0, State.DONE, self.micro_step,
        )
        # fmt: on

    def _turn(self, turn: Turn, now: int) -> None:
        if turn is Turn.INSIDE:
            self.totals.flags |= _SEVERAL
            return
        if turn in (Turn.HOLD, Turn.EXTEND):
            self._hold(now)
            return
        if turn in (Turn.CONFIRM, Turn.CONFIRM_AND_CLOSE):
            self._write_held()
        if turn is Turn.CONFIRM:
            self.totals.flags |= _SEVERAL
        else:
            self._close_step(now)

    def _hold(self, now: int) -> None:
        """Perhaps the first step ends here; go on as if it did."""
        if self._held is not None:
            self._merge_held()
            self.totals.flags |= _SEVERAL
        self._account(now)
        self._sample_step(now)
        self._held = (self.totals, now)
        self._start_next(now)

    def _account(self, now: int) -> None:
        """Time up to *now* belongs to the step that ends, also that of phases still open."""
        self.totals.phase_ns[self.current_phase] += now - self._since
        self._since = now

    def _close_step(self, now: int) -> None:
        self._account(now)
        self._sample_step(now)
        self._write_step(self.totals, self.step, now)
        self._start_next(now)

    def _start_next(self, now: int) -> None:
        self.step += 1
        self.micro_step = 0
        self.totals = StepTotals(now)
        self._live(now)

    def _merge_held(self) -> None:
        """The held step was not over: take it up again."""
        held, self._held = self._held, None
        if held is None:
            return
        totals = held[0]
        self.step -= 1
        self.micro_step += totals.micro_steps
        totals.absorb(self.totals)
        self.totals = totals
        self._words[LIVE_STEP], self._words[LIVE_MICRO_STEP] = self.step, self.micro_step

    def _write_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._write_step(held[0], self.step - 1, held[1])

    def _write_step(self, totals: StepTotals, step: int, end: int) -> None:
        began = now_ns()
        # fmt: off
        self._begin(
            _STEP, 0, totals.flags, NO_NAME, NO_NAME, step, 0, NO_DTYPE, -1, step, totals.start_ns,
            totals.start_ns, end, totals.comm_bytes, 0, self.tid, 0.0, _DONE, totals.micro_steps,
        )
        # fmt: on
        overhead = totals.own_ns + int(totals.mark_ns * _WRAPPED_MARKS)
        self._overhead_ns += overhead
        words = self._words
        words[LIVE_OVERHEAD] = self._overhead_ns
        wall = time.time_ns() - (began - end)
        self._summaries.append(end, totals.flat(step, wall_end_ns=wall, overhead_ns=overhead, ring_head=words[HEAD]))
        self.totals.own_ns += now_ns() - began

    # -- what samples ------------------------------------------------------------------------------------------------

    def at_step_end(self, name: str, sampler: Sampler) -> None:
        """Call *sampler* with the totals of steps that end: of all, or of those it asks for."""
        self._samplers.append(guarded(name, sampler))
        self._due_ns.append(0)
        self._first_due_ns = 0

    def sample_memory(self, name: str, at_peak: MemorySampler, at_end: MemorySampler) -> None:
        """Call *at_peak* where memory is high (before backward and before the optimizer) and *at_end* after it.

        In every step, or in as many as :class:`ddiag.capture.pace.Pace` allows; the others say that it is unknown.
        """
        self._peak_samplers.append(guarded(name, at_peak))
        self._memory_samplers.append(guarded(name, at_end))

    def sample_peaks(self) -> None:
        began = now_ns()
        for sampler in self._peak_samplers:
            sampler(self.totals)
        took = now_ns() - began
        self._memory_pace.spent(took)
        self.totals.own_ns += took

    def _sample_step(self, now: int) -> None:
        totals = self.totals
        if self._memory_pace.on:
            for sampler in self._memory_samplers:
                sampler(totals)
            self._memory_pace.spent(now_ns() - now)
        if now >= self._first_due_ns:
            self._call_samplers(now)
        if self.counted_outside:
            before, counted = self._counted, self._count()
            self._counted = counted
            totals.comm_count += counted[0] - before[0]
            totals.comm_bytes += counted[1] - before[1]
            totals.comm_wait_ns += counted[2] - before[2]
            totals.own_ns += (counted[0] - before[0]) * _UNSEEN_CALL_NS
        ended = now_ns()
        self._memory_pace.step_ended(ended)
        totals.own_ns += ended - now

    def _call_samplers(self, now: int) -> None:
        due_ns = self._due_ns
        for at, sampler in enumerate(self._samplers):
            if now >= due_ns[at]:
                due_ns[at] = sampler(self.totals) or 0
        self._first_due_ns = min(due_ns, default=now + _IDLE_NS)

    def _count(self) -> tuple[int, int, int]:
        words = self._words
        return words[COUNTED_CALLS], words[COUNTED_BYTES], words[COUNTED_WAIT_NS]

    def _begin_first_step(self, now: int) -> None:
        super()._begin_first_step(now)
        self._counted = self._count()

    def close_steps(self) -> None:
        """The process ends: the first step may still be held back."""
        if self._held is not None:
            self._write_held()
        self._summaries.close()
