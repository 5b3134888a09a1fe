"""What one step adds up to."""

from __future__ import annotations

import math

from ddiag.schema.phases import Phase
from ddiag.schema.steps import PHASES, UNKNOWN

_NONE, _OTHER = int(Phase.NONE), int(Phase.OTHER)
_SUMS = ("micro_steps", "comm_count", "comm_bytes", "comm_wait_ns", "gc_ns", "gc_count", "mark_ns", "own_ns")


class StepTotals:
    """The step that is running; hooks add to it."""

    __slots__ = (
        "alloc_retries",
        "comm_bytes",
        "comm_count",
        "comm_wait_ns",
        "device_allocated_bytes",
        "device_peak_allocated_bytes",
        "device_peak_reserved_bytes",
        "device_reserved_bytes",
        "flags",
        "gc_count",
        "gc_ns",
        "grad_norm",
        "loader_queue",
        "loader_workers",
        "loss_scale",
        "mark_ns",
        "micro_steps",
        "own_ns",
        "phase_ns",
        "rss_bytes",
        "rss_peak_bytes",
        "scaled",
        "start_ns",
        "unscaled",
    )

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.phase_ns = [0] * PHASES
        self.micro_steps = self.flags = self.comm_count = self.comm_bytes = self.comm_wait_ns = 0
        self.gc_ns = self.gc_count = self.mark_ns = self.own_ns = 0
        self.rss_bytes = self.rss_peak_bytes = self.alloc_retries = UNKNOWN
        self.device_allocated_bytes = self.device_reserved_bytes = UNKNOWN
        self.device_peak_allocated_bytes = self.device_peak_reserved_bytes = UNKNOWN
        self.loader_queue = self.loader_workers = UNKNOWN
        self.loss_scale = self.grad_norm = math.nan
        self.scaled = self.unscaled = False

    def absorb(self, later: StepTotals) -> None:
        """*later* turned out to be the rest of this step."""
        self.phase_ns = [mine + its for mine, its in zip(self.phase_ns, later.phase_ns, strict=True)]
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.flags |= later.flags
        if later.alloc_retries != UNKNOWN:
            self.alloc_retries = max(0, self.alloc_retries) + later.alloc_retries
        for name in ("loss_scale", "grad_norm"):
            if not math.isnan(getattr(later, name)):
                setattr(self, name, getattr(later, name))
        for name in ("rss_peak_bytes", "device_allocated_bytes", "device_reserved_bytes"):
            setattr(self, name, max(getattr(self, name), getattr(later, name)))
        for name in ("rss_bytes", "device_peak_allocated_bytes", "device_peak_reserved_bytes"):
            setattr(self, name, getattr(later, name))
        for name in ("loader_queue", "loader_workers"):
            if getattr(later, name) != UNKNOWN:
                setattr(self, name, getattr(later, name))

    def flat(self, step: int, *, wall_end_ns: int, overhead_ns: int, ring_head: int) -> tuple[float, ...]:
        """The :class:`~ddiag.schema.steps.StepRecord` of *step* as :func:`ddiag.schema.steps.flat` has it, its end 0.

        Without making one: this is a hot path.
        """
        phases = self.phase_ns.copy()
        phases[_OTHER] += phases[_NONE]
        phases[_NONE] = 0
        # fmt: off
        return (
            step, wall_end_ns, self.start_ns, 0, self.micro_steps, self.flags, *phases, self.comm_count,
            self.comm_bytes, self.comm_wait_ns, self.rss_bytes, self.rss_peak_bytes, self.device_allocated_bytes,
            self.device_reserved_bytes, self.device_peak_allocated_bytes, self.device_peak_reserved_bytes,
            self.alloc_retries, self.gc_ns, self.gc_count, self.loss_scale, self.grad_norm, self.loader_queue,
            self.loader_workers, overhead_ns, ring_head,
        )
        # fmt: on
