"""Lines of many authors that tell one thing each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen

_KERNEL = re.compile(r"Detected kernel version (?P<version>[\w.-]+), which is below the recommended minimum")
_BUS = re.compile(r"Unexpected bus error encountered in worker|insufficient shared memory \(shm\)")
_EXISTS = re.compile(r"File exists: .*(?:lock|shm)|lock file .*exists|Waiting to acquire lock|/lock\b.*(?:stale|exist)")


class Remarks:
    """Kernel version warnings, bus errors of loader workers, and leftovers of an earlier attempt."""

    needles: tuple[str, ...] = (
        "Detected kernel version",
        "bus error encountered",
        "shared memory (shm)",
        "lock file",
        "acquire lock",
        "/lock",
        ".lock",
        "File exists: ",
        "negative travel",
        "not* synchronized",
    )

    def line(self, line: Line) -> Iterator[Seen]:
        if found := _KERNEL.search(line.text):
            yield Event("log.kernel_warning", {"version": found["version"]})
        elif "not* synchronized" in line.text or "negative travel time" in line.text:
            yield Event("log.clock_skew", {})
        elif _BUS.search(line.text):
            yield Event("log.bus_error", {})
        elif _EXISTS.search(line.text):
            yield Event("log.stale_lock", {})

    def end(self) -> Iterable[Seen]:
        return ()
