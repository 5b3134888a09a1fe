"""How a supervisor asks a rank for its stacks where it may not trace it: a signal, answered into a file in memory."""

from __future__ import annotations

OFFSET = 5
"""The signal is SIGRTMIN + this: the standard ones belong to users, schedulers and torch."""
MEMORY_NAME = "ddiag-stacks"
"""Name of the file in memory; /proc/PID/fd shows it as ``/memfd:ddiag-stacks``."""
