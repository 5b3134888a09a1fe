"""``profile/request.json``: which steps every rank shall record with torch.profiler.

The supervisor (or ``ddiag watch``) replaces the file; a rank looks at it when a step ends, which costs one ``stat``.
A rank that reads a request whose first step has passed leaves it alone: a window counts only when all ranks record it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ddiag.schema.folder import PROFILE, write_whole

REQUEST = "request.json"
MAX_STEPS = 50
"""Of one window: a trace of more would be gigabytes, and the job would wait for it to be written."""


@dataclass(frozen=True)
class ProfileRequest:
    """Steps *first* to *last*, both included, as counted by ``StepRecord.step``."""

    first: int
    last: int
    reason: str = "asked for"


def request_file(run: Path) -> Path:
    return run / PROFILE / REQUEST


def write_request(run: Path, request: ProfileRequest) -> None:
    path = request_file(run)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(asdict(request)) + "\n")


def read_request(path: Path) -> ProfileRequest | None:
    """None when there is none, or what is there makes no sense."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        request = ProfileRequest(int(found["first"]), int(found["last"]), str(found.get("reason", "")))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return request if 0 <= request.first <= request.last < request.first + MAX_STEPS else None


def trace_file(run: Path, *, rank: int, request: ProfileRequest, attempt: int = 0) -> Path:
    """Where a rank puts its trace of *request*; ingest takes the rank from the content, then from this name."""
    again = f"-a{attempt}" if attempt else ""
    return run / PROFILE / f"steps-{request.first}-{request.last}{again}" / f"r{rank:05d}.json.gz"
