"""Lets the supervisor see this process's stacks when it hangs, and keeps the last one when a fatal signal ends it.

Two preparations, each a system call or two at the start and nothing later. Where Linux lets only a tracee's ancestors
trace it (Yama, scope 1), the supervisor's descendants are admitted, so that the py-spy it starts may look. And where
tracing is refused altogether, faulthandler answers on a signal that nobody uses: its handler is C code, runs while
another thread holds the GIL, and writes into a file in memory. For fatal signals (gloo aborts on sizes that differ)
faulthandler is switched on where nobody has, with a file that goes again when it is not needed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import socket
from pathlib import Path

from ddiag.capture.recorder import Recorder
from ddiag.schema.folder import NODES
from ddiag.schema.stack_signal import MEMORY_NAME, OFFSET

_PR_SET_PTRACER = 0x59616D61
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_ONLY_ANCESTORS = "1"
_NODE_FILE = re.compile(r"-(\d+)(?:\.task.*)?\.json")
_MOST_ANCESTORS = 32


def activated(active: Recorder) -> None:
    _admit_tracers(active.files.folder.parents[1])
    _answer_signal(active)
    _keep_last_stack(active)


def _keep_last_stack(active: Recorder) -> None:
    if faulthandler.is_enabled():
        return
    path = active.files.fatal
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    faulthandler.enable(file=file, all_threads=True)

    def close() -> None:
        # Somebody may have switched it on for himself meanwhile, so it stays on, and the file open.
        if not os.fstat(file).st_size:
            path.unlink(missing_ok=True)

    active.at_close("fatal", close)


def _admit_tracers(run: Path) -> None:
    try:
        restricted = _SCOPE.read_text(encoding="ascii").strip() == _ONLY_ANCESTORS
    except OSError:
        return  # no Yama
    supervisor = _supervisor(run) if restricted else 0
    if supervisor:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(supervisor), 0, 0, 0)


def _supervisor(run: Path) -> int:
    """Pid of the ancestor that is a supervisor of *run*; 0 when there is none."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    names = [path.name for path in (run / NODES).glob(f"{host}-*.json")]
    supervisors = {int(match[1]) for name in names if (match := _NODE_FILE.search(name))}
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        if pid in supervisors:
            return pid
        if pid <= 1:
            break
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        pid = int(stat.rpartition(")")[2].split()[1])
    return 0


def _answer_signal(active: Recorder) -> None:
    """Unless somebody uses that signal."""
    number = signal.SIGRTMIN + OFFSET
    if not hasattr(os, "memfd_create") or signal.getsignal(number) is not signal.SIG_DFL:
        return
    memory = os.memfd_create(MEMORY_NAME)
    faulthandler.register(number, file=memory, all_threads=True)
    active.facts.write("stack_signal", signal=int(number), file=f"/proc/{os.getpid()}/fd/{memory}")

    def close() -> None:
        faulthandler.unregister(number)
        os.close(memory)

    active.at_close("stack_signal", close)
