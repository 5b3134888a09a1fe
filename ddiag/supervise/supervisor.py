"""``ddiag run``, from the command to the end of its job."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import ddiag
from ddiag.errors import InputError
from ddiag.schema.folder import DISABLE_VARIABLE, RUN_VARIABLE, Manifest, read_manifest
from ddiag.schema.profile import ProfileRequest, write_request
from ddiag.schema.secrets import redact_argv
from ddiag.supervise.door import Door
from ddiag.supervise.environment import copy_bootstrap, job_environment, needs_exporting
from ddiag.supervise.job import Ended, Job, run_instead
from ddiag.supervise.launcher import launcher_word, run_name
from ddiag.supervise.proc import start_ticks
from ddiag.supervise.run_folder import Place, open_run
from ddiag.supervise.signals import Witness, hold, occupy_standard_streams

DEFAULT_OUT = "ddiag-runs"


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for."""

    out: str = DEFAULT_OUT
    """Folder in which run folders are made, or a URL to which the run is copied at its end."""
    name: str | None = None
    profile_steps: tuple[int, int] | None = None
    profile_slow: bool = False
    report: bool = True
    nvtx: bool = False
    device_timing: bool = False
    sample_interval_s: float = 1.0
    hang_after_s: float | None = None
    """After how long without progress the job is taken to hang; None: a multiple of its usual step, 0: never."""
    on_hang: str = "keep"
    """keep or kill"""


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
    occupy_standard_streams()
    mask = hold()
    job = Job(command, prepared.environment, mask, Witness())
    sampler = door.attempt("watch host and devices", lambda: _start_sampler(place, job.pid, options))
    watchdog = door.attempt("watch the job's progress", lambda: _start_watchdog(place, job.pid, options, say))
    door.attempt("write env.json", lambda: _write_facts(place, environment))
    ended = job.wait()
    door.attempt("end the watchdog", lambda: _stop_watchdog(watchdog))
    door.attempt("end the sampler", lambda: _stop_sampler(sampler))
    door.attempt("finish the run folder", lambda: _finish(place, ended, mask, options, say))
    if not ended.asked_to_end:
        door.attempt("build the native kernel", lambda: _build_kernel(place, environment, mask, say))
    return ended


# What is not needed before the job runs is imported when it does.


def _start_sampler(place: Place, root: int, options: RunOptions) -> int | None:
    from ddiag.supervise.sampler import Watched, start_sampler

    slow = options.profile_slow and place.founder
    return start_sampler(Watched(place.path, place.manifest.host, root, options.sample_interval_s, profile_slow=slow))


def _stop_sampler(pid: int | None) -> None:
    from ddiag.supervise.sampler import stop_sampler

    if pid is not None:
        stop_sampler(pid)


def _start_watchdog(place: Place, root: int, options: RunOptions, say: Callable[[str], None]) -> int | None:
    from ddiag.supervise.watchdog import Guarded, start_watchdog

    if options.hang_after_s == 0:
        return None
    host = place.manifest.host
    diagnoses = place.founder or read_manifest(place.path).host == host
    kill = options.on_hang == "kill"
    return start_watchdog(Guarded(place.path, host, root, diagnoses, options.hang_after_s, kill), say)


def _stop_watchdog(pid: int | None) -> None:
    from ddiag.supervise.watchdog import stop_watchdog

    if pid is not None:
        stop_watchdog(pid)


def _write_facts(place: Place, environment: Mapping[str, str]) -> None:
    from ddiag.supervise.node_facts import write_facts

    write_facts(place, environment)


def _finish(place: Place, ended: Ended, mask: Set[int], options: RunOptions, say: Callable[[str], None]) -> None:
    from ddiag.supervise.finish import Finish

    Finish(place, ended, mask, say).run(diagnose=options.report, url=options.out if is_url(options.out) else None)


def _build_kernel(place: Place, environment: Mapping[str, str], mask: Set[int], say: Callable[[str], None]) -> None:
    from ddiag.supervise.native_kernel import build_for_next_run

    if build_for_next_run(place.path, environment, mask) is not None:
        say("the native kernel is being built in the background, for the next run (DDIAG_BUILD=0: never)")


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
    manifest = Manifest(
        ddiag_version=ddiag.__version__,
        name=options.name or run_name(command),
        argv=redact_argv(command),
        launcher=launcher_word(command),
        start_wall_ns=time.time_ns(),
        host=socket.gethostname(),
        supervisor_pid=pid,
        supervisor_start_ticks=start_ticks(pid),
        options=_as_json(options),
    )
    place = open_run(_folder(options.out), manifest, named=options.name is not None, environment=environment)
    if options.profile_steps is not None and place.founder:
        write_request(place.path, ProfileRequest(*options.profile_steps, reason="--profile-steps"))
    bootstrap = copy_bootstrap(place.path)
    return _Prepared(place, job_environment(environment, place.path, bootstrap, command))


def is_url(out: str) -> bool:
    return "://" in out


def _folder(out: str) -> Path:
    return Path(DEFAULT_OUT if is_url(out) else out).resolve()


def _as_json(options: RunOptions) -> dict[str, Any]:
    return {
        "profile_steps": options.profile_steps,
        "profile_slow": options.profile_slow,
        "nvtx": options.nvtx,
        "device_timing": options.device_timing,
        "sample_interval_s": options.sample_interval_s,
        "report": options.report,
        "hang_after_s": options.hang_after_s,
        "on_hang": options.on_hang,
    }
