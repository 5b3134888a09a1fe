"""When the job's ranks end, and how: seen from outside, as they end.

A rank is nobody's child here, so its status is read from /proc in the moment between its end and its parent's look at
it. A pidfd wakes us at once; where the parent is quicker still (or the kernel has no pidfds) the time is known, but not
the status.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from typing import Any

from ddiag.supervise.processes import read_stat


@dataclass(frozen=True)
class _Watched:
    pid: int
    rank: int
    start_ticks: int


class Exits:
    """Tells of every watched process once, when it has ended."""

    def __init__(self, root: int) -> None:
        """*root* is the job's first process: its end is noticed as well, but not told of."""
        self._poll = select.poll()
        self._of: dict[int, _Watched | None] = {}
        """By pidfd; None for the root."""
        self._known: set[tuple[int, int]] = set()
        self._open(root, None)

    def watch(self, pid: int, rank: int) -> None:
        """Watch the process *pid* of *rank* from now on; again is nothing new."""
        stat = read_stat(pid)
        if stat is None or (pid, stat.start_ticks) in self._known:
            return
        self._known.add((pid, stat.start_ticks))
        self._open(pid, _Watched(pid, rank, stat.start_ticks))

    def wait(self, limit_s: float) -> list[dict[str, Any]]:
        """Wait for an end, at most *limit_s*: ``exit`` lines for the samples, without those of the root."""
        if not self._of:
            time.sleep(limit_s)
            return []
        found = [number for number, _ in self._poll.poll(max(0.0, limit_s * 1000.0))]
        at_ns = time.time_ns()
        told = []
        for number in found:
            watched = self._of.pop(number)
            self._poll.unregister(number)
            os.close(number)
            if watched is not None:
                told.append({"at": at_ns, "pid": watched.pid, "rank": watched.rank, **_status(watched)})
        return told

    def _open(self, pid: int, watched: _Watched | None) -> None:
        try:
            number = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return  # gone already, or a kernel or Python that has no pidfds
        self._of[number] = watched
        self._poll.register(number, select.POLLIN)


def _status(watched: _Watched) -> dict[str, int]:
    """``{"code": n}`` or ``{"signal": n}`` of a process that has ended; empty when its parent was quicker."""
    stat = read_stat(watched.pid)
    if stat is None or stat.start_ticks != watched.start_ticks or stat.state not in "ZX":
        return {}
    code = os.waitstatus_to_exitcode(stat.exit_status)
    return {"signal": -code} if code < 0 else {"code": code}
