"""Signals: the job gets each one exactly once, whoever was meant.

Supervisor and job share a process group, so Ctrl-C, a terminal that hangs up or a scheduler that signals every process
reaches both; what only the supervisor gets (``kill PID``, a container's stop) must be passed on. A *witness*, a process
in the same group that sleeps and lets signals pile up, tells the two apart: what is pending there was sent to all.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Set as AbstractSet
from pathlib import Path

_NEVER_OURS = {
    *("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGTTIN", "SIGTTOU", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP"),
    *("SIGSYS", "SIGABRT", "SIGPIPE", "SIGXFSZ", "SIGURG", "SIGWINCH"),
}
WATCHED: frozenset[int] = frozenset(
    number for number in signal.valid_signals() if getattr(number, "name", "") not in _NEVER_OURS
)
"""Held back from the supervisor, to be looked at one by one."""
ENDING: frozenset[int] = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU}
)
"""Somebody wants the job to end, or to get ready for it."""
STOPPING: frozenset[int] = ENDING - {signal.SIGUSR1, signal.SIGUSR2}
"""Somebody wants the job to end."""

_SETTLE_S = 0.15
"""How long after us another process of the group may get the same signal: whoever sends it may lose its CPU between
two of them."""


def hold() -> set[int]:
    """Hold back what is watched, and a child's end; returns what was held back before, for the job's own use."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED | {signal.SIGCHLD}))


class Witness:
    """A process of our group in which signals stay pending. It ends with us, however we end."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _sleep_until_closed(reader, self._writer)
        os.close(reader)

    def got(self, number: int) -> bool:
        """Whether *number* was sent to the whole group; waits a moment for it to arrive there."""
        until = time.monotonic() + _SETTLE_S
        while not _pending(self.pid) >> (number - 1) & 1:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def renew(self) -> Witness:
        """One in which nothing is pending."""
        self.dismiss()
        return Witness()

    def dismiss(self) -> None:
        os.close(self._writer)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _sleep_until_closed(reader: int, writer: int) -> None:
    """The witness's whole life; never returns."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.close(writer)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        close_others({0, 1, 2, reader})
        os.read(reader, 1)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def occupy_standard_streams() -> None:
    """See to it that no file of ours gets the number of a standard stream we were started without.

    The job does not inherit what is opened here.
    """
    number = -1
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.close(number)


def close_others(keep: AbstractSet[int]) -> None:
    """Close every inherited file but *keep*: a helper must not hold the job's pipes open after the job."""
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number not in keep:
            try:
                os.close(number)
            except OSError:
                continue  # the folder's own descriptor is gone by now


def _pending(pid: int) -> int:
    """Bits of the signals that wait in *pid*; bit 0 is signal 1."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    bits = 0
    for line in status.splitlines():
        if line.startswith(("SigPnd:", "ShdPnd:")):
            bits |= int(line.split()[1], 16)
    return bits


def die_of(number: int) -> None:
    """End as the job did, so that whoever waits for us sees the same; returns only if *number* cannot kill."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
