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
from ddiag.supervise.processes import read_stat
from ddiag.supervise.progress import LocalRanks
from ddiag.supervise.run_folder import read_nodes

LIMIT_S = 40.0
_LOOK_AGAIN_S = 0.2


def capture_now(run: Path) -> list[str]:
    """Until all nodes have answered; lines about those that did not. Raises InputError when nothing can be captured."""
    manifest = read_manifest(run)
    if manifest.end_wall_ns is not None:
        raise InputError(f"{run}: this job has ended; leave --live away")
    host = socket.gethostname()
    try:
        request = write_capture_request(run, BY_USER, host)
    except OSError as error:
        raise InputError(f"{run}: cannot ask for a capture there: {error.strerror}") from error
    nodes = [node for node in read_nodes(run) if node.end_wall_ns is None]
    watched = manifest.options.get("hang_after_s") != 0
    hosts = {node.host for node in nodes if watched and node.host != host}
    if watched and any(node.host == host and _is_there(node.supervisor_pid) for node in nodes):
        hosts.add(host)
    else:
        _capture_here(run, host, request.number)
    until = time.monotonic() + LIMIT_S
    missing = [one for one in hosts if not capture_file(run, one, request.number).exists()]
    while missing and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN_S)
        missing = [one for one in hosts if not capture_file(run, one, request.number).exists()]
    if not captures(run, request.number):
        raise InputError(f"{run}: no supervisor of this job answers and none of its processes is on this host")
    unwatched = sorted({node.host for node in nodes if not watched and node.host != host})
    return [f"no answer from {', '.join(sorted({*missing, *unwatched}))}"] if missing or unwatched else []


def _is_there(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZX"


def _capture_here(run: Path, host: str, number: int) -> None:
    ranks = LocalRanks(run)
    running = ranks.look()
    if not running:
        return
    standings = [one.standing(time.monotonic_ns()) for one in running]
    allowed = limits(standings, None)
    stuck = frozenset(one.rank for one in standings if one.quiet_s > allowed[one.rank] / 2)
    capture(run, host, ranks.all(), Wanted(number, BY_USER, allowed, stuck))
