"""The object hooks talk to: current step and phase, collectives, boundaries.

``current`` is the process's recorder, or None while it is dormant (not yet training, or a forked child). A hook reads it
anew at every call::

    from ddiag.capture import recorder

    active = recorder.current
    if active is None:
        return None
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from ddiag.capture.boundaries import Boundaries, Turn
from ddiag.capture.clock import anchor, now_ns
from ddiag.capture.door import DOOR, guarded
from ddiag.capture.identity import Identity, start_ticks
from ddiag.capture.names import Facts, Names
from ddiag.capture.ring import CAPACITY, RingWriter
from ddiag.capture.steps import StepTotals, StepWriter
from ddiag.schema.folder import ProcessFiles
from ddiag.schema.phases import FORMAT_VERSION, Flag, Kind, Mark, Pause, Phase, State
from ddiag.schema.ring import (
    LIVE_ERRORS,
    LIVE_OVERHEAD,
    LIVE_PHASE,
    LIVE_PHASE_SINCE,
    LIVE_PROGRESS,
    LIVE_SEQ,
    LIVE_STEP,
    NO_DTYPE,
    NO_NAME,
    RingHeader,
)
from ddiag.schema.steps import StepFlag

current: Recorder | None = None

_COLLECTIVE, _PHASE = int(Kind.COLLECTIVE), int(Kind.PHASE)
_OPEN, _ISSUED, _DONE, _FAILED = int(State.OPEN), int(State.ISSUED), int(State.DONE), int(State.FAILED)
_NONE, _FORWARD, _BACKWARD, _OPTIMIZER = int(Phase.NONE), int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER)
_EVALUATION = int(Phase.EVALUATION)
_STEP_FLAGS = {
    int(Phase.EVALUATION): StepFlag.EVALUATION,
    int(Phase.CHECKPOINT): StepFlag.CHECKPOINT,
    int(Phase.LOGGING): StepFlag.LOGGING,
    int(Phase.COMPILE): StepFlag.COMPILED,
}

Sampler = Callable[["StepTotals"], None]


class Recorder:
    """Records one training process.

    Public attributes hooks may read: ``step``, ``current_phase``, ``micro_step`` (of the training thread, right now),
    ``names``, ``facts``, ``ring``, ``files``, ``identity``, ``totals``.
    """

    def __init__(self, files: ProcessFiles, identity: Identity, *, capacity: int = CAPACITY) -> None:
        files.folder.mkdir(parents=True, exist_ok=True)
        self.files = files
        self.identity = identity
        self.tid = threading.get_native_id()
        at = anchor()
        header = RingHeader(
            *(FORMAT_VERSION, capacity, files.pid, identity.rank, identity.world_size, identity.local_rank),
            *(files.attempt, start_ticks(), at.wall_ns, at.mono_ns, self.tid),
        )
        self.ring = RingWriter.create(files.ring, header)
        self.names = Names(files.names, self.ring.words)
        self.facts = Facts(files.facts)
        self._summaries = StepWriter(
            files.steps, pid=files.pid, rank=identity.rank, attempt=files.attempt, at=at
        )
        self._words = self.ring.words
        self._begin = self.ring.begin
        self._thread = threading.get_ident()
        self._own = threading.local()
        self.step = 0
        self.current_phase = _NONE
        self.micro_step = 0
        self.totals = StepTotals(at.mono_ns)
        self._since = at.mono_ns
        self._untouched = True
        self._open: list[tuple[int, int]] = []
        self._forward_seen = False
        self.eval_called = False
        """The user has called ``Module.eval()``, and nothing has been trained since."""
        self.last_source = 0
        self.training_source = 0
        """Identity of the data set whose batches were last trained on."""
        self._optimizers: list[tuple[int, int]] = []
        self._boundaries = Boundaries()
        self._held: tuple[StepTotals, int] | None = None
        self._samplers: list[Callable[..., object]] = []
        self._peak_samplers: list[Callable[..., object]] = []
        self.optimizer_posts = 0
        """Steps optimizers finished, whatever they mean for the training step."""
        self.mark_ns = 0
        """Measured cost of one phase (enter and leave); see :func:`ddiag.capture.overhead.mark_ns`."""
        self._overhead_ns = 0
        self.comm_totals: Callable[[], tuple[int, int, int]] | None = None
        """Set by a tier that counts outside Python: cumulative (count, bytes, wait ns)."""
        self._comm_before = (0, 0, 0)
        self._live(at.mono_ns)
        DOOR.on_error = self._count_error

    # -- collectives -------------------------------------------------------------------------------------------------

    def begin_collective(  # noqa: PLR0913, PLR0917 - the fields of a record, positional for speed
        self,
        op: int,
        group_id: int,
        label_id: int = NO_NAME,
        flags: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        dtype: int = NO_DTYPE,
        peer: int = -1,
        seq: int = -1,
    ) -> int:
        """A collective is about to be issued; returns the token for :meth:`issued` and :meth:`complete`.

        *op* is an :class:`Op`, *group_id* and *label_id* come from ``names.id``, *dtype* from ``names.dtype``. Callable
        from any thread.
        """
        now = now_ns()
        totals = self.totals
        totals.comm_count += 1
        totals.comm_bytes += bytes_in
        words = self._words
        words[LIVE_SEQ] = seq
        words[LIVE_PROGRESS] = now
        # fmt: off
        return self._begin(
            _COLLECTIVE, op, flags, group_id, label_id, self.step, self.current_phase, dtype, peer, seq, now, now, 0,
            bytes_in, bytes_out, self._tid(), 0.0, _OPEN, self.micro_step,
        )
        # fmt: on

    def issued(self, token: int) -> None:
        """The issuing call returned."""
        self.ring.set_state(token, _ISSUED)

    def complete(self, token: int, ok: bool = True, end_ns: int = 0) -> bool:  # noqa: FBT001, FBT002 - hot path
        """It is over, now or at *end_ns*; False when the ring has gone round since."""
        end = end_ns or now_ns()
        self._words[LIVE_PROGRESS] = end
        return self.ring.complete(token, end, _DONE if ok else _FAILED)

    def device_timed(self, token: int, start_ns: int, end_ns: int) -> bool:
        """It is over, and a device said when it began and ended (already on the host's monotonic clock)."""
        return self.ring.set_times(token, start_ns, end_ns, flags=Flag.DEVICE_TIMED)

    def waited(self, wait_ns: int) -> None:
        """The training thread waited that long for communication."""
        self.totals.comm_wait_ns += wait_ns

    # -- spans and marks of other kinds ------------------------------------------------------------------------------

    def begin_span(
        self, kind: int, op: int, label_id: int = NO_NAME, group_id: int = NO_NAME, bytes_in: int = 0
    ) -> int:
        """Kinds UNIT, COPY and the like; close it with :meth:`complete`."""
        now = now_ns()
        # fmt: off
        return self._begin(
            kind, op, 0, group_id, label_id, self.step, self.current_phase, NO_DTYPE, -1, -1, now, now, 0,
            bytes_in, 0, self._tid(), 0.0, _OPEN, self.micro_step,
        )
        # fmt: on

    def mark(self, mark: Mark, value: float = 0.0, label_id: int = NO_NAME) -> int:
        """A moment."""
        return self._moment(Kind.MARK, mark, now_ns(), value=value, label_id=label_id)

    def pause(self, pause: Pause, start_ns: int, value: float = 0.0) -> int:
        """A pause that began at *start_ns* and ends now."""
        return self._moment(Kind.PAUSE, pause, start_ns, value=value)

    def _moment(self, kind: int, op: int, start_ns: int, *, value: float = 0.0, label_id: int = NO_NAME) -> int:
        now = now_ns()
        # fmt: off
        return self._begin(
            kind, op, 0, NO_NAME, label_id, self.step, self.current_phase, NO_DTYPE, -1, -1, start_ns, start_ns, now,
            0, 0, self._tid(), value, _DONE, self.micro_step,
        )
        # fmt: on

    # -- phases ------------------------------------------------------------------------------------------------------

    def enter(self, phase: int, label_id: int = NO_NAME) -> int:
        """The calling thread begins *phase*; returns the token for :meth:`leave`.

        Only the training thread's phases count for the step; those of other threads are records and nothing else.
        """
        now = now_ns()
        if threading.get_ident() != self._thread:
            return self._phase_record(phase, now, now, 0, 0, _OPEN, label_id, self._tid())
        if self._untouched:
            self._begin_first_step(now)
        totals = self.totals
        totals.phase_ns[self.current_phase] += now - self._since
        totals.marks += 1
        token = self._phase_record(phase, now, now, 0, 0, _OPEN, label_id, self.tid)
        self._open.append((token, phase))
        self._since = now
        self.current_phase = phase
        if phase == _FORWARD:
            self._forward_seen = True
        elif phase in _STEP_FLAGS:
            totals.flags |= _STEP_FLAGS[phase]
        self._live(now)
        return token

    def _begin_first_step(self, now: int) -> None:
        """The first step begins with its first mark: what came before built the model and the loaders."""
        self._untouched = False
        self.totals = StepTotals(now)
        self._since = now

    def leave(self, token: int, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - hot path
        """End the phase of *token*, and whatever was left open inside it (an exception passed by)."""
        if token < 0:
            return
        now = now_ns()
        if threading.get_ident() == self._thread:
            self.totals.phase_ns[self.current_phase] += now - self._since
            self._since = now
            self._unwind(token)
            self.current_phase = self._open[-1][1] if self._open else _NONE
            self._live(now)
        self.ring.complete(token, now, _FAILED if failed else _DONE)

    def phase(self, phase: int) -> PhaseSpan:
        """``with active.phase(Phase.LOGGING): …`` for slow paths."""
        return PhaseSpan(self, phase)

    def in_phase(self, phase: int) -> bool:
        """The training thread (asked from it) is in *phase*, at whatever depth; other threads: never."""
        if threading.get_ident() != self._thread:
            return False
        return any(one == phase for _, one in self._open)

    @property
    def training(self) -> bool:
        """The first phase has begun."""
        return not self._untouched

    def on_training_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def _unwind(self, token: int) -> None:
        stack = self._open
        if stack and stack[-1][0] == token:
            stack.pop()
        elif any(one == token for one, _ in stack):
            while stack.pop()[0] != token:
                pass

    def _phase_record(  # noqa: PLR0913, PLR0917 - hot path
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
        if threading.get_ident() != self._thread or self.in_phase(_BACKWARD):
            return None
        self._leave_stale(_FORWARD)
        self.resume_training()
        self.training_source, self.eval_called = self.last_source, False
        if not self._forward_seen and self.current_phase in (_NONE, _OPTIMIZER):
            self._infer_forward(now_ns())
        self.sample_peaks()
        return self.enter(_BACKWARD)

    def end_backward(self, token: int, *, failed: bool) -> None:
        self.leave(token, failed)
        self._forward_seen = False
        if not failed:
            self.totals.micro_steps += 1
            self.micro_step += 1

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
        if threading.get_ident() != self._thread or self.in_phase(_FORWARD) or self.in_phase(_BACKWARD):
            return None
        if not grad and not training:
            if not self._open:
                self.enter(_EVALUATION)
            return None
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

    # -- optimizers and the end of a step ----------------------------------------------------------------------------

    def begin_optimizer(self, optimizer: int) -> None:
        """*optimizer* (its identity) begins a step; :meth:`end_optimizer` ends it.

        Steps nest: GradScaler.step and ZeroRedundancyOptimizer call another optimizer; only the outermost counts.
        """
        if threading.get_ident() != self._thread:
            self._adopt_thread()
        if self._optimizers and self.current_phase != _OPTIMIZER and not self.in_phase(_OPTIMIZER):
            # What began before never ended: an exception passed by.
            self._optimizers.clear()
        if not self._optimizers:
            self.resume_training()
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
            self.totals.flags |= StepFlag.OPTIMIZER_SKIPPED
            self.mark(Mark.OPTIMIZER_SKIPPED)
        self._turn(self._boundaries.after(optimizer), now_ns())

    def forget_optimizers(self) -> None:
        """The loop is at its top (it asks for a batch): what never ended was left by an exception."""
        if self.current_phase == _NONE:
            self._optimizers.clear()

    def engine_step(self, *, skipped: bool = False) -> None:
        """An engine (DeepSpeed) or the user says: here a training step ends. From now on optimizers do not."""
        if not self._boundaries.by_engine:
            if self._held is not None:
                self._merge_held()
            self._boundaries.leave_to_engine()
        self.totals.flags |= StepFlag.ENGINE_BOUNDARY
        if skipped:
            self.totals.flags |= StepFlag.OPTIMIZER_SKIPPED
            self.mark(Mark.OPTIMIZER_SKIPPED)
        self._close_step(now_ns())

    def _turn(self, turn: Turn, now: int) -> None:
        if turn is Turn.HOLD:
            self._account(now)
            self._sample_step()
            self._held = (self.totals, now)
            self._start_next(now)
        elif turn is Turn.EXTEND:
            self._merge_held()
            self.totals.flags |= StepFlag.SEVERAL_OPTIMIZERS
            self._account(now)
            self._sample_step()
            self._held = (self.totals, now)
            self._start_next(now)
        elif turn is Turn.CONFIRM:
            self._write_held()
        elif turn is Turn.CONFIRM_AND_CLOSE:
            self._write_held()
            self._close_step(now)
        elif turn is Turn.CLOSE:
            self._close_step(now)
        else:
            self.totals.flags |= StepFlag.SEVERAL_OPTIMIZERS

    def _account(self, now: int) -> None:
        """Time up to *now* belongs to the step that ends, also that of phases still open."""
        self.totals.phase_ns[self.current_phase] += now - self._since
        self._since = now

    def _close_step(self, now: int) -> None:
        self._account(now)
        self._sample_step()
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

    def _write_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._write_step(held[0], self.step - 1, held[1])

    def _write_step(self, totals: StepTotals, step: int, end: int) -> None:
        began = now_ns()
        # fmt: off
        self._begin(
            Kind.STEP, 0, totals.flags, NO_NAME, NO_NAME, step, 0, NO_DTYPE, -1, step, totals.start_ns,
            totals.start_ns, end, totals.comm_bytes, 0, self.tid, 0.0, _DONE, totals.micro_steps,
        )
        # fmt: on
        overhead = totals.marks * self.mark_ns + totals.own_ns
        self._overhead_ns += overhead
        wall = time.time_ns() - (began - end)
        self._summaries.append(
            totals.record(step, end, wall_end_ns=wall, overhead_ns=overhead, ring_head=self.ring.head)
        )
        self._words[LIVE_OVERHEAD] = self._overhead_ns
        self.totals.own_ns += now_ns() - began

    # -- what samples ------------------------------------------------------------------------------------------------

    def at_step_end(self, name: str, sampler: Sampler) -> None:
        """Call *sampler* with the totals of every step that ends."""
        self._samplers.append(guarded(name, sampler))

    def at_peaks(self, name: str, sampler: Sampler) -> None:
        """Call *sampler* where memory is high: before backward and before the optimizer."""
        self._peak_samplers.append(guarded(name, sampler))

    def sample_peaks(self) -> None:
        for sampler in self._peak_samplers:
            sampler(self.totals)

    def _sample_step(self) -> None:
        began = now_ns()
        totals = self.totals
        for sampler in self._samplers:
            sampler(totals)
        if self.comm_totals is not None:
            count, sent, waited = now = self.comm_totals()
            before, self._comm_before = self._comm_before, now
            totals.comm_count += count - before[0]
            totals.comm_bytes += sent - before[1]
            totals.comm_wait_ns += waited - before[2]
        totals.own_ns += now_ns() - began

    # -- the process -------------------------------------------------------------------------------------------------

    def _adopt_thread(self) -> None:
        """Training runs on another thread than the one that activated us."""
        self._thread = threading.get_ident()
        self.tid = threading.get_native_id()
        self._open.clear()
        self._optimizers.clear()
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
        words[LIVE_STEP] = self.step
        words[LIVE_PHASE] = self.current_phase
        words[LIVE_PHASE_SINCE] = words[LIVE_PROGRESS] = now

    def _count_error(self, errors: int) -> None:
        self._words[LIVE_ERRORS] = errors

    def close(self) -> None:
        """The process ends in good order."""
        if self._held is not None and not self._boundaries.by_engine:
            self._write_held()
        self.ring.close(now_ns())
        self._summaries.close()


class PhaseSpan:
    """A phase as a context manager."""

    __slots__ = ("_phase", "_recorder", "_token")

    def __init__(self, recorder: Recorder, phase: int) -> None:
        self._recorder = recorder
        self._phase = phase
        self._token = -1

    def __enter__(self) -> None:
        self._token = self._recorder.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._recorder.leave(self._token, kind is not None)
        return False
