"""Texts by id (``.names``) and slow facts (``.facts.jsonl``) of one process: appended whole, in one system call."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from ddiag.capture.append_file import AppendFile
from ddiag.capture.ring import RingWriter
from ddiag.schema import names as layout
from ddiag.schema.ring import LIVE_NAMES, NO_DTYPE, NO_NAME

MAX_FACT_BYTES = 16 << 20
"""Of one process over its whole life; what comes later is counted and left out."""


class Names:
    """Gives every distinct text a small number, and writes the text before the number is used."""

    def __init__(self, path: Path, ring: RingWriter) -> None:
        self._ring = ring
        self._file = AppendFile(path, ring.count_dropped)
        self._ids: dict[str, int] = {}
        self._adding = threading.Lock()

    def id(self, text: str) -> int:
        """The text's number; -1 once there are too many."""
        found = self._ids.get(text)
        return self._add(text) if found is None else found

    def dtype(self, text: str) -> int:
        """The same for a record's 16-bit ``dtype``."""
        found = self.id(text)
        return NO_DTYPE if found < 0 else found

    def _add(self, text: str) -> int:
        with self._adding:
            found = self._ids.get(text)
            if found is not None:
                return found
            number = len(self._ids)
            if number >= layout.MAX_NAMES:
                return NO_NAME
            if not self._file.write(layout.encode(text)):
                return NO_NAME
            self._ids[text] = number
            self._ring.words[LIVE_NAMES] = number + 1
            return number

    def close(self) -> None:
        self._file.close()


class Facts:
    """Things worth a line: groups, buckets, units, versions, the capture tier."""

    def __init__(self, path: Path, ring: RingWriter) -> None:
        self._dropped = ring.count_dropped
        self._file = AppendFile(path, ring.count_dropped)
        self._bytes = 0

    def write(self, kind: str, /, **values: Any) -> None:
        """One line of *kind*. Values JSON does not know are written as text."""
        line = json.dumps({"t": time.time_ns(), "kind": kind, **values}, default=str).encode() + b"\n"
        if self._bytes + len(line) > MAX_FACT_BYTES:
            self._dropped()
        elif self._file.write(line):
            self._bytes += len(line)

    def close(self) -> None:
        self._file.close()
