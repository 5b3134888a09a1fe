"""The object hooks talk to: collectives, phases, steps, names and facts of one training process.

``current`` is the process's recorder, or None while it is dormant (not yet training, or a forked child). A hook reads
it anew at every call::

    from ddiag.capture import recorder

    active = recorder.current
    if active is None:
        return None
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident

from ddiag.capture.clock import Anchor, anchor, now_ns
from ddiag.capture.door import DOOR, guarded
from ddiag.capture.identity import Identity, start_ticks
from ddiag.capture.names import Facts, Names
from ddiag.capture.ring import CAPACITY, RingWriter
from ddiag.capture.step_clock import StepClock
from ddiag.capture.step_file import StepWriter
from ddiag.schema import steps
from ddiag.schema.folder import ProcessFiles
from ddiag.schema.phases import FORMAT_VERSION, Flag, Kind, Mark, Op, Pause, State
from ddiag.schema.ring import LIVE_ERRORS, LIVE_PROGRESS, LIVE_SEQ, NO_DTYPE, NO_NAME, RingHeader

current: Recorder | None = None

_COLLECTIVE = int(Kind.COLLECTIVE)
_OPEN, _ISSUED, _DONE, _FAILED = int(State.OPEN), int(State.ISSUED), int(State.DONE), int(State.FAILED)


class Recorder(StepClock):
    """Records one training process.

    Attributes hooks may read: ``step``, ``current_phase``, ``micro_step`` (of the training thread, right now),
    ``totals`` (of the running step; hooks add to it), ``names``, ``facts``, ``ring``, ``files``, ``identity``.
    """

    def __init__(self, files: ProcessFiles, identity: Identity, *, capacity: int = CAPACITY) -> None:
        files.folder.mkdir(parents=True, exist_ok=True)
        self.files = files
        self.identity = identity
        at = anchor()
        ring = RingWriter.create(files.ring, _header(files, identity, at, capacity))
        header = steps.pack_header(
            pid=files.pid, rank=identity.rank, attempt=files.attempt, wall_ns=at.wall_ns, mono_ns=at.mono_ns
        )
        super().__init__(ring, at.mono_ns, StepWriter(files.steps, header, ring.count_dropped))
        self.names = Names(files.names, ring)
        self.facts = Facts(files.facts, ring)
        self._closers: list[Callable[[], object]] = []
        DOOR.on_error = self._count_error

    # -- collectives -------------------------------------------------------------------------------------------------

    def begin_collective(
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
            bytes_in, bytes_out, self.tid if get_ident() == self.thread else self._tid(), 0.0, _OPEN, self.micro_step,
        )
        # fmt: on

    def issued(self, token: int) -> None:
        """The issuing call returned."""
        self.ring.set_state(token, _ISSUED)

    def complete(self, token: int, ok: bool = True, end_ns: int = 0, flags: int = 0) -> bool:
        """It is over, now or at *end_ns*; *flags* are added. False when the ring has gone round since."""
        end = end_ns or now_ns()
        self._words[LIVE_PROGRESS] = end
        return self.ring.complete(token, end, _DONE if ok else _FAILED, flags)

    def device_timed(self, token: int, start_ns: int, end_ns: int) -> bool:
        """It is over, and a device said when it began and ended (already on the host's monotonic clock)."""
        return self.ring.set_times(token, start_ns, end_ns, flags=Flag.DEVICE_TIMED)

    def waited_for(self, began_ns: int, ended_ns: int, *, ok: bool = True) -> None:
        """The calling thread waited for communication; only the training thread's waits count for the step."""
        if get_ident() == self.thread:
            self.totals.comm_wait_ns += ended_ns - began_ns
        # fmt: off
        self._begin(
            _COLLECTIVE, Op.WAIT, 0, NO_NAME, NO_NAME, self.step, self.current_phase, NO_DTYPE, -1, -1, began_ns,
            began_ns, ended_ns, 0, 0, self._tid(), 0.0, _DONE if ok else _FAILED, self.micro_step,
        )
        # fmt: on

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

    # -- the process -------------------------------------------------------------------------------------------------

    def _count_error(self, errors: int) -> None:
        self._words[LIVE_ERRORS] = errors

    def close(self) -> None:
        """The process ends in good order. The ring stays writable: callbacks of other threads may still come."""
        while self._closers:
            self._closers.pop()()
        self.close_steps()
        self.names.close()
        self.facts.close()
        self.ring.close(now_ns())

    def at_close(self, name: str, close: Callable[[], object]) -> None:
        """Call *close* when this recording ends."""
        self._closers.append(guarded(name, close))

    def detach(self) -> None:
        """In a forked child: whoever still holds this recorder must not write into its parent's files."""
        self.ring.detach()
        self._bind_ring()
        self._held = None
        self._summaries.detach()
        self.names.close()
        self.facts.close()


def _header(files: ProcessFiles, identity: Identity, at: Anchor, capacity: int) -> RingHeader:
    return RingHeader(
        format_version=FORMAT_VERSION,
        capacity=capacity,
        pid=files.pid,
        rank=identity.rank,
        world_size=identity.world_size,
        local_rank=identity.local_rank,
        attempt=files.attempt,
        start_ticks=start_ticks(),
        wall_ns=at.wall_ns,
        mono_ns=at.mono_ns,
        main_tid=threading.get_native_id(),
    )
