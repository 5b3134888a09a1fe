"""The native kernel of the recorder, built after a job for the next one.

Only where it would have served (a rank was recorded without it) and a compiler is there; by the interpreter of the
ranks, since it fits one torch. The build is on its own: another session, idle priority, no streams. It may be killed
at any instant, and it is tried once a day.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Set
from pathlib import Path
from shutil import which
from typing import Any

from ddiag.schema.folder import BUILD_VARIABLE, DISABLE_VARIABLE, ProcessFiles, find_processes
from ddiag.supervise.environment import PACKAGE

BUILD = PACKAGE / "capture" / "native" / "build.py"
AGAIN_S = 24 * 3600
_SERVED = ("hooks", "dispatch")
"""Tiers that the kernel would have taken the place of."""
_TIER_VARIABLE = "DDIAG_TIER"


def build_for_next_run(run: Path, environment: Mapping[str, str], mask: Set[int]) -> int | None:
    """Start the build; its pid, or None when there is nothing to build or no way to.

    *environment* is the user's, *mask* what was held back of signals before we did.
    """
    served = None if _unwanted(environment) else _interpreter(run)
    if served is None or not _due(served, environment):
        return None
    python, _torch = served
    process = subprocess.Popen(
        [python, str(BUILD), "--if-missing", "--quiet"],
        cwd="/",
        env={**environment, DISABLE_VARIABLE: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: _stay_behind(mask),  # noqa: PLW1509 - we have one thread
    )
    return process.pid


def _unwanted(environment: Mapping[str, str]) -> bool:
    compiler = which(environment.get("CXX", "g++"), path=environment.get("PATH"))
    return environment.get(BUILD_VARIABLE) == "0" or _TIER_VARIABLE in environment or compiler is None


def _interpreter(run: Path) -> tuple[str, str] | None:
    """(path, its torch's version) of a rank that was recorded without the kernel, if it is on this host."""
    for files in find_processes(run):
        facts = _facts(files)
        python = facts.get("process", {}).get("executable")
        if facts.get("tier", {}).get("tier") in _SERVED and isinstance(python, str) and os.access(python, os.X_OK):
            return python, str(facts["process"].get("torch"))
    return None


def _facts(files: ProcessFiles) -> dict[str, dict[str, Any]]:
    """The last fact of each kind."""
    found = {}
    try:
        lines = files.facts.read_bytes().splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            fact = json.loads(line)
            found[str(fact["kind"])] = fact
        except (ValueError, TypeError, KeyError):
            continue  # cut short
    return found


def _due(served: tuple[str, str], environment: Mapping[str, str]) -> bool:
    """Whether nobody has tried it for a day; leaves a mark that we do."""
    home = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or "/nonexistent") / ".cache")
    folder = Path(home) / "ddiag" / "native"
    mark = folder / f"tried-{hashlib.sha256(' '.join(served).encode()).hexdigest()[:12]}"
    try:
        if time.time() - mark.stat().st_mtime < AGAIN_S:
            return False
    except FileNotFoundError:
        pass
    except OSError:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:
        return False  # no place of our own to build in
    return True


def _stay_behind(mask: Set[int]) -> None:
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # one that waits already would be an exception, before the exec
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
