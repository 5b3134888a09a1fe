"""``nodes/<host>.samples``: appended to once a second, and thinned so that it never grows beyond bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ddiag.schema.samples import encode

MAX_BYTES = 32 << 20
"""About 5 hours of a node with 8 devices at one sample a second."""
_KEPT = b'"kind":"sample"'


class SampleFile:
    """Writes lines; when there are too many, every second sample of the older three quarters goes.

    Facts (everything but samples) always stay. Thinned again and again, the distant past has the fewest samples.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, max_bytes: int = MAX_BYTES) -> None:
        """Raises FileExistsError when another supervisor of this host samples already."""
        self._path = path
        self.number: int
        """Of the open file."""
        self._max_bytes = max_bytes
        self.number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._bytes = 0
        self.write(header)

    def write(self, line: dict[str, Any]) -> None:
        data = encode(line)
        os.write(self.number, data)
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            self._thin()

    def _thin(self) -> None:
        lines = self._path.read_bytes().splitlines(keepends=True)
        recent = len(lines) * 3 // 4
        kept = [line for place, line in enumerate(lines) if place >= recent or place % 2 == 0 or _KEPT not in line]
        beside = self._path.with_name(f".{self._path.name}.thinned")
        beside.write_bytes(b"".join(kept))
        beside.replace(self._path)
        os.close(self.number)
        self.number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._bytes = sum(map(len, kept))

    def close(self) -> None:
        os.close(self.number)
