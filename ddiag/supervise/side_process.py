"""Work after the job in a process of its own: low priority, limited time, ended by the signals that end jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from ddiag.supervise.environment import PACKAGE
from ddiag.supervise.signals import ENDING

_NICENESS = 10
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); "


@dataclass(frozen=True)
class Limits:
    """How the work may run."""

    mask: Set[int]
    """What was held back of signals before we did."""
    time_s: float


def run_aside(code: str, arguments: Sequence[str], log: Path, limits: Limits) -> str:
    """Run Python *code* with this ddiag; why it failed, empty when it did not. *log* holds its words if it failed."""
    command = [sys.executable, "-c", _START + code, str(PACKAGE.parent), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: _be_quiet(limits.mask),  # noqa: PLW1509 - we have one thread
        )
    why_not = _wait(process, limits.time_s)
    if not why_not:
        log.unlink()
    elif process.returncode > 0:
        why_not = _error_line(log) or f"{why_not}, see {log}"
    return why_not


def _be_quiet(mask: Set[int]) -> None:
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # one that waits already would be an exception, before the exec
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Why there is no result; empty when there is."""
    until = time.monotonic() + limit_s
    while process.poll() is None:
        left = until - time.monotonic()
        if left <= 0:
            return _kill(process, f"it took longer than {limit_s:g} s")
        got = signal.sigtimedwait(ENDING | {signal.SIGCHLD}, min(left, 1.0))
        if got is not None and got.si_signo in ENDING:
            return _kill(process, f"{signal.Signals(got.si_signo).name} came")
    if process.returncode == -signal.SIGINT:
        return "SIGINT came"
    return "" if process.returncode == 0 else f"it ended with {process.returncode}"


def _kill(process: subprocess.Popen[bytes], why: str) -> str:
    process.kill()
    process.wait()
    return why


def _error_line(log: Path) -> str:
    """The message of an error that was expected to be read by people."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith(("Error:", "Internal error:"))]
    return errors[0].removeprefix("Error: ") if errors else ""
