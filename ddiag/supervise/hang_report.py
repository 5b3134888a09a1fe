"""The diagnosis of a hang while the job hangs: ``ddiag hang RUN`` in a process of its own, its words on our stderr."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ddiag.schema.hang import HANG, captures
from ddiag.supervise.environment import PACKAGE
from ddiag.supervise.run_folder import read_nodes

OTHERS_LIMIT_S = 15.0
LIMIT_S = 120.0
_NICENESS = 5
_WIDTH = "100"
_LOOK_AGAIN_S = 0.2
_HANG = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ddiag.cli import main; sys.exit(main(sys.argv[1:]))"


def wait_for_nodes(run: Path, number: int, pause: Callable[[float], None]) -> None:
    """Until every node that takes part has captured, or long enough; *pause* raises when there is no time left."""
    until = time.monotonic() + OTHERS_LIMIT_S
    expected = len({node.host for node in read_nodes(run) if node.end_wall_ns is None})
    while len(captures(run, number)) < expected and time.monotonic() < until:
        pause(_LOOK_AGAIN_S)


def diagnose(run: Path, number: int, pause: Callable[[float], None]) -> list[str]:
    """The on-call view in lines, or why there is none; *pause* raises when the job ends meanwhile."""
    result = run / HANG / f"diagnosis-{number}.json"
    command = [sys.executable, "-c", _HANG, str(PACKAGE.parent)]
    command += ["hang", str(run), "--json", str(result), "--quiet"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": _WIDTH, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        preexec_fn=lambda: os.nice(_NICENESS),  # noqa: PLW1509 - we have one thread
    )
    try:
        text = _output(process, pause)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        last = text.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return [f"no diagnosis: {last[0]}. Make it with: ddiag hang {run}"]
    return [*text.rstrip().splitlines(), f"captured in {run / HANG}; the job is left as it is"]


def _output(process: subprocess.Popen[bytes], pause: Callable[[float], None]) -> str:
    """What it printed; its output is small enough to wait in the pipe."""
    until = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < until:
        pause(_LOOK_AGAIN_S)
    if process.poll() is None:
        process.kill()
    return process.communicate()[0].decode("utf-8", "replace")
