"""A file that is only appended to, whole or not at all, and never at the job's expense."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class AppendFile:
    """Each :meth:`write` is one system call; what cannot be written is dropped and counted.

    A job may close file descriptors it did not open (daemons do); the number would then soon belong to another file.
    So every write first looks whether the descriptor still is this file.
    """

    def __init__(self, path: Path, dropped: Callable[[], None] | None = None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._dropped = dropped
        found = os.fstat(self._file)
        self._identity = (found.st_dev, found.st_ino)

    def write(self, data: bytes | bytearray) -> bool:
        """False when *data* was dropped."""
        try:
            done = self._append(data)
        except OSError:
            done = False
        if not done and self._dropped is not None:
            self._dropped()
        return done

    def _append(self, data: bytes | bytearray) -> bool:
        found = os.fstat(self._file)
        if (found.st_dev, found.st_ino) != self._identity:
            self._file = -1
            return False
        written = os.write(self._file, data)
        if written < len(data):
            # The disk is full: half a record would shift all that follow.
            os.ftruncate(self._file, found.st_size)
        return written == len(data)

    def close(self) -> None:
        """Later writes are dropped."""
        file, self._file = self._file, -1
        try:
            found = os.fstat(file)
            if (found.st_dev, found.st_ino) == self._identity:
                os.close(file)
        except OSError:
            return
