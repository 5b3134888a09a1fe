"""What the supervisor of a recorded job saw of its processes."""

from __future__ import annotations

from collections.abc import Mapping

PROCESS: Mapping[str, str] = {
    "process.state": "a rank's process when a hang was captured: pid, local_rank, state (letter of /proc), phase, "
    "phase_s, step, quiet_s (without progress), limit_s, stuck (bool), wchan (where its main thread waits in the "
    "kernel), cpu_share (of a core), threads, gil (bool: its main thread sleeps and holds the GIL), no_stacks (why "
    "there are none)",
    "process.stopped": "a rank is stopped (SIGSTOP, SIGTSTP or a debugger): pid, tracer (pid of who traces it, 0)",
    "process.uninterruptible": "a rank's main thread waits in the kernel for a device or file system: pid, wchan, "
    "functions (list, innermost first)",
    "process.gone": "a rank's process is no more, and did not end in good order: pid, local_rank, exitcode, signal",
    "process.finished": "a rank has ended in good order while others are still at work: pid",
    "process.stall_over": "ranks that made no progress went on: ranks (list), seconds",
}
"""kind -> meaning and fields."""
