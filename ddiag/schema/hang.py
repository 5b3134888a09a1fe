"""``hang/``: what was captured when a job made no progress, or when somebody asked.

::

    hang/request-<n>.json            the n-th capture is wanted: {"t": Unix ns, "by": "watchdog" or "user", "host": …}
    hang/<host>-<n>/capture.json     one node's answer, written whole; below
    hang/<host>-<n>/flight-<rank>    a dump of torch's Flight Recorder, where it could be had
    hang/diagnosis-<n>.json          what was concluded while the job still hung

``capture.json`` holds ``kind`` (:data:`CAPTURE_KIND`), ``format_version``, ``number``, ``host``, ``t`` (Unix ns),
``by``, ``world_size``, ``over_ns`` (Unix ns at which the ranks went on; absent while they hang), ``devices`` (the last
sample of them, as in :mod:`ddiag.schema.samples`) and ``ranks``, a list of objects:

``rank`` ``pid`` ``local_rank`` ``attempt`` ``step`` ``phase`` ``phase_s`` ``tier``
    From its ring: what it does, since when; which tier records its communication.
``quiet_s`` ``limit_s`` ``stuck``
    Since when nothing of it has begun or ended, after how long that is too long, and whether it is.
``closed``
    It ended its recording in good order.
``state`` ``threads`` ``wchan`` ``cpu_share`` ``rss_bytes`` ``tracer`` ``kernel``
    Of the process: state letter of /proc (empty: it is gone), where its main thread waits in the kernel, the share of
    a core it used while it was looked at, who traces it, and its main thread's kernel stack where that can be read.
``code`` ``signal``
    How it ended, where that was seen.
``stacks``
    [{"thread", "tid", "state", "kind", "frames": ["function (file:line)", …]}], innermost frame first, by
    ``stacks_by`` (py-spy, faulthandler); ``no_stacks`` says why there are none.
``groups``
    [{"name", "desc", "backend", "ranks", "last_enqueued", "last_completed", "known", "cut", "calls": […]}]: how far it
    came in each process group (``known``: its calls are recorded right now), with the newest calls and all unfinished
    ones (``cut``: there were older ones): {"op", "seq", "state" (open, issued, done, failed),
    "enqueue_ns", "end_ns" (Unix ns), "bytes_in", "bytes_out", "dtype", "peer" (global rank), "label", "step", "phase",
    "end_unknown"}.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddiag.schema.folder import NODES, write_whole
from ddiag.schema.phases import FORMAT_VERSION

HANG = "hang"
CAPTURE = "capture.json"
CAPTURE_KIND = "ddiag hang capture"
BY_WATCHDOG, BY_USER = "watchdog", "user"
_REQUEST = re.compile(r"request-(\d+)\.json")
MOST_CAPTURES = 1000


@dataclass(frozen=True)
class CaptureRequest:
    """Every node is to capture once."""

    number: int
    by: str
    host: str
    wall_ns: int


def write_capture_request(run: Path, by: str, host: str) -> CaptureRequest:
    """Ask all supervisors of *run*; somebody who asked in the same moment gets another number."""
    folder = run / HANG
    folder.mkdir(exist_ok=True)
    number = max((one.number for one in capture_requests(run)), default=0) + 1
    while True:
        made = CaptureRequest(number, by, host, time.time_ns())
        try:
            file = os.open(folder / f"request-{number}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(json.dumps({"t": made.wall_ns, "by": by, "host": host}) + "\n")
        return made


def capture_requests(run: Path) -> list[CaptureRequest]:
    """All of them, oldest first; one that is being written has no author yet."""
    found = []
    for path in (run / HANG).glob("request-*.json"):
        match = _REQUEST.fullmatch(path.name)
        if match is None:
            continue
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            found.append(CaptureRequest(int(match[1]), str(said["by"]), str(said["host"]), int(said["t"])))
        except (OSError, ValueError, KeyError, TypeError):
            found.append(CaptureRequest(int(match[1]), "", "", time.time_ns()))
    return sorted(found, key=lambda one: one.number)


def capture_file(run: Path, host: str, number: int) -> Path:
    return run / HANG / f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)}-{number}" / CAPTURE


def watchdog_mark(run: Path, host: str) -> Path:
    """Exists once a watchdog of *host* looks after the run: with one supervisor for each task there are many."""
    return run / NODES / f".{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.watchdog"


def write_capture(run: Path, host: str, number: int, values: dict[str, Any]) -> Path:
    """Write *values* as this host's capture; its path."""
    path = capture_file(run, host, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"kind": CAPTURE_KIND, "format_version": FORMAT_VERSION, "number": number, "host": host}
    write_whole(path, json.dumps({**head, **values}, separators=(",", ":")) + "\n")
    return path


def say_over(path: Path, wall_ns: int) -> None:
    """The ranks of the capture at *path* went on."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    write_whole(path, json.dumps({**said, "over_ns": wall_ns}, separators=(",", ":")) + "\n")


def captures(run: Path, number: int) -> list[Path]:
    """What the nodes captured for request *number*."""
    return sorted((run / HANG).glob(f"*-{number}/{CAPTURE}"))


def newest_evidence(run: Path) -> list[Path]:
    """The files of the newest capture of *run*, when its ranks hang still as far as is known; else nothing."""
    numbers = [_number(path) for path in (run / HANG).glob(f"*-*/{CAPTURE}")]
    newest = captures(run, max(numbers, default=0))
    if any('"over_ns":' in path.read_text(encoding="utf-8") for path in newest):
        return []
    return [file for path in newest for file in sorted(path.parent.iterdir()) if not file.name.startswith(".")]


def _number(path: Path) -> int:
    last = path.parent.name.rpartition("-")[2]
    return int(last) if last.isdigit() else 0
