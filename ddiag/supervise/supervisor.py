"""``ddiag run``, from the command to the end of its job."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Any

import ddiag
from ddiag.errors import InputError
from ddiag.schema.folder import DISABLE_VARIABLE, REPORT, RUN_VARIABLE, Manifest, read_manifest, write_manifest
from ddiag.schema.placement import settle
from ddiag.schema.profile import ProfileRequest, write_request
from ddiag.schema.secrets import redact_argv
from ddiag.supervise import report
from ddiag.supervise.attempts import attempts, why_no_ranks
from ddiag.supervise.door import Door
from ddiag.supervise.environment import copy_bootstrap, job_environment, needs_exporting
from ddiag.supervise.job import Ended, Job, run_instead
from ddiag.supervise.launcher import launcher_word, run_name
from ddiag.supervise.node_facts import write_facts
from ddiag.supervise.processes import read_stat
from ddiag.supervise.run_folder import Place, open_run, read_nodes, write_node
from ddiag.supervise.sampler import Watched, start_sampler, stop_sampler
from ddiag.supervise.side_process import Limits
from ddiag.supervise.signals import Witness, hold
from ddiag.supervise.upload import LIMIT_S, is_url, upload

DEFAULT_OUT = "ddiag-runs"
_OTHERS_LIMIT_S = 30.0
"""How long the founder waits for the supervisors of other nodes before it diagnoses."""


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for."""

    out: str = DEFAULT_OUT
    """Folder in which run folders are made, or a URL to which the run is copied at its end."""
    name: str | None = None
    profile_steps: tuple[int, int] | None = None
    report: bool = True
    nvtx: bool = False
    sample_interval_s: float = 1.0


@dataclass(frozen=True)
class _Prepared:
    place: Place
    environment: dict[str, str]


def supervise(
    command: Sequence[str], options: RunOptions, *, environment: Mapping[str, str], say: Callable[[str], None]
) -> Ended:
    """Run *command* with recording until it has ended.

    Without recording (switched off, already recorded, no run folder) this process becomes the command and does not
    return. Raises :class:`ddiag.supervise.job.CannotStartError`.
    """
    door = Door(say)
    why_not = _why_not(command, environment)
    prepared = (
        None
        if why_not is not None
        else door.attempt("prepare recording", lambda: _prepare(command, options, environment))
    )
    if prepared is None:
        if why_not != "":
            say(why_not or "the job runs without recording")
        run_instead(command, environment)
        raise AssertionError("unreachable")
    place = prepared.place
    door.run = place.path
    if place.founder:
        say(f"recording into {place.path}")
    if needs_exporting(command):
        say("mpirun has its own -x: add -x PYTHONPATH -x DDIAG_RUN, or other nodes are not recorded")
    mask = hold()
    job = Job(command, prepared.environment, mask, Witness())
    watched = Watched(place.path, place.manifest.host, job.pid, options.sample_interval_s)
    sampler = door.attempt("watch host and devices", lambda: start_sampler(watched))
    door.attempt("write env.json", lambda: write_facts(place, environment))
    ended = job.wait()
    if sampler is not None:
        door.attempt("end the sampler", lambda: stop_sampler(sampler))
    door.attempt("finish the run folder", lambda: _finish(place, ended, mask, options, say))
    return ended


def _why_not(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Why this job is not recorded: empty when that needs no words, None when it is recorded."""
    if environment.get(DISABLE_VARIABLE) == "1" or which(command[0], path=environment.get("PATH")) is None:
        return ""
    if not sys.platform.startswith("linux"):
        return "recording needs Linux; the job runs without it"
    outer = environment.get(RUN_VARIABLE)
    if outer and _is_running(Path(outer)):
        return f"this job is being recorded already, into {outer}"
    return None


def _is_running(run: Path) -> bool:
    try:
        return read_manifest(run).end_wall_ns is None
    except InputError:
        return False


def _prepare(command: Sequence[str], options: RunOptions, environment: Mapping[str, str]) -> _Prepared:
    """The run folder with everything the job's processes look for in it."""
    pid = os.getpid()
    stat = read_stat(pid)
    manifest = Manifest(
        ddiag_version=ddiag.__version__,
        name=options.name or run_name(command),
        argv=redact_argv(command),
        launcher=launcher_word(command),
        start_wall_ns=time.time_ns(),
        host=socket.gethostname(),
        supervisor_pid=pid,
        supervisor_start_ticks=stat.start_ticks if stat is not None else 0,
        options=_as_json(options),
    )
    place = open_run(_folder(options.out), manifest, named=options.name is not None, environment=environment)
    if options.profile_steps is not None and place.founder:
        write_request(place.path, ProfileRequest(*options.profile_steps, reason="--profile-steps"))
    bootstrap = copy_bootstrap(place.path)
    return _Prepared(place, job_environment(environment, place.path, bootstrap, command))


def _folder(out: str) -> Path:
    return Path(DEFAULT_OUT if is_url(out) else out).resolve()


def _as_json(options: RunOptions) -> dict[str, Any]:
    return {
        "profile_steps": options.profile_steps,
        "nvtx": options.nvtx,
        "sample_interval_s": options.sample_interval_s,
        "report": options.report,
    }


def _finish(place: Place, ended: Ended, mask: Set[int], options: RunOptions, say: Callable[[str], None]) -> None:
    """Gather this node's rings and close the manifest; the founder diagnoses once the other nodes have ended."""
    settle(place.path)
    write_node(place, ended.shell_code)
    if not place.founder:
        return
    if options.report:
        _wait_for_others(place.path, 1.0 if ended.asked_to_end else _OTHERS_LIMIT_S)
    found = attempts(place.path)
    manifest = replace(
        place.manifest, end_wall_ns=time.time_ns(), exit_code=ended.shell_code, attempts=found, notes=_notes(place.path)
    )
    write_manifest(place.path, manifest)
    if not found:
        say(f"nothing to diagnose: {why_no_ranks(place.path, manifest.argv)}")
    elif options.report:
        _report(place.path, _limits(ended, mask, report.LIMIT_S), say)
    if is_url(options.out):
        _upload(place.path, options.out, _limits(ended, mask, LIMIT_S), say)


def _notes(run: Path) -> tuple[str, ...]:
    """What a reader of the folder should know."""
    left = [node.host for node in read_nodes(run) if node.end_wall_ns is None]
    return (f"still running or killed when the report was made: {', '.join(left)}",) if left else ()


def _wait_for_others(run: Path, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until and any(node.end_wall_ns is None for node in read_nodes(run)):
        time.sleep(0.2)


def _limits(ended: Ended, mask: Set[int], usual_s: float) -> Limits:
    return Limits(mask, report.HURRIED_LIMIT_S if ended.asked_to_end else usual_s)


def _upload(run: Path, url: str, limits: Limits, say: Callable[[str], None]) -> None:
    why_not = upload(run, url, limits)
    target = f"{url.rstrip('/')}/{run.name}"
    say(f"not copied to {target}: {why_not}; it is in {run}" if why_not else f"copied to {target}")


def _report(run: Path, limits: Limits, say: Callable[[str], None]) -> None:
    why_not = report.analyze(run, limits)
    if why_not:
        say(f"no report: {why_not}. Make it with: ddiag analyze {run}")
        return
    for line in report.summary(run):
        say(line)
    say(f"report: {run / REPORT}")
