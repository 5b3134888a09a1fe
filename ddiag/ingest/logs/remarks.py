"""Lines that people take for the cause and that healthy runs print as well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen

_KERNEL = re.compile(r"Detected kernel version (?P<version>[\w.-]+), which is below the recommended minimum")
_EXISTS = re.compile(r"File exists: .*(?:lock|shm)|lock file .*exists|Waiting to acquire lock|/lock\b.*(?:stale|exist)")


class Remarks:
    """Kernel version warnings, and leftovers of an earlier attempt."""

    needles: tuple[str, ...] = (
        "Detected kernel version",
        "lock file",
        "acquire lock",
        "/lock",
        ".lock",
        "File exists: ",
    )

    def line(self, line: Line) -> Iterator[Seen]:
        if found := _KERNEL.search(line.text):
            yield Event("log.kernel_warning", {"version": found["version"]})
        elif "not* synchronized" in line.text or "negative travel time" in line.text:
            yield Event("log.clock_skew", {})
        elif _EXISTS.search(line.text):
            yield Event("log.stale_lock", {})

    def end(self) -> Iterable[Seen]:
        return ()
