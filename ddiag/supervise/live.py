"""``ddiag hang --live RUN``: the job's supervisors are asked for a capture; where there is none, we look ourselves."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from ddiag.errors import InputError
from ddiag.schema.folder import read_manifest
from ddiag.schema.hang import BY_USER, capture_file, captures, write_capture_request
from ddiag.supervise.alarm import limits
from ddiag.supervise.hang_capture import Wanted, capture
from ddiag.supervise.progress import LocalRanks
from ddiag.supervise.run_folder import read_nodes

LIMIT_S = 40.0
_OWN_LIMIT_S = 4.0
"""After which we capture this host's ranks ourselves: its supervisor would have begun."""
_LOOK_AGAIN_S = 0.2


def capture_now(run: Path) -> list[str]:
    """Until all nodes have answered; lines about those that did not. Raises InputError when nothing can be captured."""
    if read_manifest(run).end_wall_ns is not None:
        raise InputError(f"{run}: this job has ended; leave --live away")
    host = socket.gethostname()
    request = write_capture_request(run, BY_USER, host)
    hosts = {node.host for node in read_nodes(run) if node.end_wall_ns is None} or {host}
    began, tried = time.monotonic(), False
    while time.monotonic() - began < LIMIT_S:
        missing = [one for one in hosts if not capture_file(run, one, request.number).exists()]
        if not missing:
            return []
        if (
            not tried
            and host in missing
            and time.monotonic() - began > _OWN_LIMIT_S
            and not _begun(run, request.number)
        ):
            tried = True
            _capture_here(run, host, request.number)
        time.sleep(_LOOK_AGAIN_S)
    if not captures(run, request.number):
        raise InputError(f"{run}: no supervisor of this job answers and none of its processes is on this host")
    return [f"no answer from {', '.join(sorted(missing))}"]


def _begun(run: Path, number: int) -> bool:
    """Some supervisor has answered, so supervisors are there."""
    return bool(captures(run, number))


def _capture_here(run: Path, host: str, number: int) -> None:
    ranks = LocalRanks(run)
    running = ranks.look()
    if not running:
        return
    standings = [one.standing(time.monotonic_ns()) for one in running]
    allowed = limits(standings, None)
    stuck = frozenset(one.rank for one in standings if one.quiet_s > allowed[one.rank] / 2)
    capture(run, host, ranks.all(), Wanted(number, BY_USER, allowed, stuck))
