"""Memory per step: the process's resident set, and the caching allocator's own counters.

Everything is only read. The kernel's peak (``ru_maxrss``) and the allocator's peaks could be reset to get an exact peak
per step, but then a job that prints them itself would print something else.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

from ddiag.capture.clock import now_ns
from ddiag.capture.names import Facts
from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals

TELL_EVERY_NS = 10 * 10**9

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class _Resident:
    """/proc/self/statm, kept open (2 µs a reading)."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._highest = 0

    def close(self) -> None:
        os.close(self._file)

    def now(self) -> int:
        return int(os.pread(self._file, 64, 0).split()[1]) * _PAGE

    def at_peak(self, totals: StepTotals) -> None:
        totals.rss_peak_bytes = max(totals.rss_peak_bytes, self.now())

    def at_end(self, totals: StepTotals) -> None:
        totals.rss_bytes = self.now()
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
        grown, self._highest = highest > self._highest > 0, max(highest, self._highest)
        totals.rss_peak_bytes = max(totals.rss_peak_bytes, totals.rss_bytes, highest if grown else 0)


class _Device:
    """The CUDA (or ROCm) caching allocator, once the process uses it."""

    def __init__(self, torch: Any, facts: Facts) -> None:
        self._torch = torch
        self._facts = facts
        self._told_ns = 0
        self._retries = -1

    def at_peak(self, totals: StepTotals) -> None:
        stats = self._stats()
        if stats is not None:
            totals.device_allocated_bytes = max(
                totals.device_allocated_bytes, stats["allocated_bytes"]["all"]["current"]
            )

    def at_end(self, totals: StepTotals) -> None:
        stats = self._stats()
        if stats is None:
            return
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        totals.device_allocated_bytes = max(totals.device_allocated_bytes, allocated["current"])
        totals.device_reserved_bytes = reserved["current"]
        totals.device_peak_allocated_bytes = allocated["peak"]
        totals.device_peak_reserved_bytes = reserved["peak"]
        retries = stats["num_alloc_retries"]
        totals.alloc_retries = max(0, retries - self._retries) if self._retries >= 0 else 0
        self._retries = retries
        if now_ns() - self._told_ns >= TELL_EVERY_NS:
            self._told_ns = now_ns()
            self._tell(stats)

    def _tell(self, stats: dict[str, Any]) -> None:
        """What changes slowly: fragmentation of the cache, and page-locked host memory."""
        pinned: dict[str, Any] = getattr(self._torch._C, "_cuda_hostMemoryStats", dict)()
        self._facts.write(
            "device_memory",
            mono_ns=self._told_ns,
            device=self._torch.cuda.current_device(),
            inactive_split_bytes=stats["inactive_split_bytes"]["all"]["current"],
            reserved_bytes=stats["reserved_bytes"]["all"]["current"],
            ooms=stats.get("num_ooms"),
            pinned_bytes=pinned.get("allocated_bytes", {}).get("current"),
            pinned_peak_bytes=pinned.get("allocated_bytes", {}).get("peak"),
        )

    def _stats(self) -> dict[str, Any] | None:
        """Counters of the current device; the raw form costs a tenth of ``torch.cuda.memory_stats()``."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return None
        stats: dict[str, Any] = self._torch._C._cuda_memoryStats(cuda.current_device())
        return stats


def activated(active: Recorder) -> None:
    if Path("/proc/self/statm").exists():
        resident = _Resident()
        active.sample_memory("memory.rss", resident.at_peak, resident.at_end)
        active.at_close("memory.rss", resident.close)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch._C, "_cuda_memoryStats"):
        device = _Device(torch, active.facts)
        active.sample_memory("memory.device", device.at_peak, device.at_end)
