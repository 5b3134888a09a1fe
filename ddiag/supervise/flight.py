"""Torch's Flight Recorder, where it can be had without disturbing anybody.

A job that set ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` has a pipe for every rank; whoever writes to it makes a thread of
torch's (C++, without the GIL) dump the recorder to ``TORCH_FR_DUMP_TEMP_FILE`` or ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``.
Our own rings tell as much of calls that were made; the dump adds what only the device knows: which of them started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddiag.supervise.proc import read_text
from ddiag.supervise.progress import LocalRank

_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DEFAULT_FILE = "/tmp/nccl_trace_rank_"
_LIMIT_S = 3.0
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Expected:
    """Dumps that were asked for: rank -> file, and the time before which a file there is an old one."""

    files: tuple[tuple[int, Path], ...]
    since_s: float

    def collect(self) -> Iterator[tuple[int, bytes]]:
        """Those that came, when they are whole."""
        until = time.monotonic() + (_LIMIT_S if self.files else 0.0)
        left = dict(self.files)
        sizes: dict[int, int] = {}
        while left and time.monotonic() < until:
            time.sleep(0.2)
            for rank, path in list(left.items()):
                size = self._new_bytes(path)
                if 0 < size == sizes.get(rank):
                    del left[rank]
                    yield rank, path.read_bytes()[:_MOST_BYTES]
                sizes[rank] = size

    def _new_bytes(self, path: Path) -> int:
        try:
            stat = path.stat()
        except OSError:
            return 0
        return stat.st_size if stat.st_mtime >= self.since_s else 0


def dump_flight(ranks: Sequence[LocalRank]) -> Expected:
    """Ask all *ranks* that offer a pipe."""
    since = time.time() - 1.0
    asked = []
    for one in ranks:
        variables = _environment(one.pid)
        stem = variables.get(_PIPE)
        if stem and _write(Path(f"{stem}{one.rank}.pipe")):
            named = next((variables[name] for name in _FILES if variables.get(name)), _DEFAULT_FILE)
            asked.append((one.rank, Path(f"{named}{one.rank}")))
    return Expected(tuple(asked), since)


def _environment(pid: int) -> dict[str, str]:
    words = (word.partition("=") for word in read_text(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, found, value in words if found}


def _write(pipe: Path) -> bool:
    """Never waits: without a reader the pipe cannot be opened."""
    try:
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(file, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(file)
