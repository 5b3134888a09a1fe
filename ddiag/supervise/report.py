"""The diagnosis at the end of a run: ``ddiag analyze RUN`` in a process of its own, with a limit to its time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddiag.schema.folder import DIAGNOSIS, REPORT
from ddiag.supervise.environment import PACKAGE
from ddiag.supervise.signals import ENDING

LIMIT_S = 300.0
HURRIED_LIMIT_S = 20.0
"""When somebody asked the job to end: a scheduler kills what is left after half a minute or so."""
_NICENESS = 10
_MOST_FINDINGS = 3
_LOG = "analysis.log"
_ANALYZE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ddiag.cli import main; sys.exit(main(sys.argv[1:]))"


@dataclass(frozen=True)
class Analysis:
    """How the analysis went; *why_not* is empty when the report is there."""

    why_not: str = ""


def analyze(run: Path, mask: Set[int], *, limit_s: float) -> Analysis:
    """Diagnose *run*. A signal that ends jobs ends it too."""
    command = [
        *(sys.executable, "-c", _ANALYZE, str(PACKAGE.parent), "analyze", str(run)),
        *("--html", str(run / REPORT), "--json", str(run / DIAGNOSIS), "--quiet"),
    ]
    log = run / _LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: _be_quiet(mask),  # noqa: PLW1509 - we have one thread
        )
    why_not = _wait(process, limit_s)
    if not why_not:
        log.unlink()
    elif process.returncode > 0:
        why_not = _error_line(log) or why_not
    return Analysis(why_not)


def _be_quiet(mask: Set[int]) -> None:
    os.nice(_NICENESS)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Why there is no result; empty when there is."""
    until = time.monotonic() + limit_s
    while process.poll() is None:
        left = until - time.monotonic()
        if left <= 0:
            process.kill()
            process.wait()
            return f"it took longer than {limit_s:.0f} s"
        got = signal.sigtimedwait(ENDING | {signal.SIGCHLD}, min(left, 1.0))
        if got is not None and got.si_signo in ENDING:
            process.kill()
            process.wait()
            return f"{signal.Signals(got.si_signo).name} came"
    return "" if process.returncode == 0 else f"it ended with {process.returncode}"


def _error_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith(("Error:", "Internal error:"))]
    return errors[0].removeprefix("Error: ") if errors else ""


def summary(run: Path) -> Iterator[str]:
    """The diagnosis in a few lines."""
    found = json.loads((run / DIAGNOSIS).read_text(encoding="utf-8"))
    verdict = found["verdict"]
    yield f"{verdict['status']}: {verdict['headline']}"
    causes = [one for one in found["findings"] if one["severity"] != "info"]
    for one in causes[:_MOST_FINDINGS]:
        yield f"  {one['severity']} {one['rule']} {one['title']}{_cost(one)}"
        if one["fix"]:
            yield f"    fix: {one['fix'][0]}"
    if len(causes) > _MOST_FINDINGS:
        yield f"  and {len(causes) - _MOST_FINDINGS} more"


def _cost(finding: dict[str, Any]) -> str:
    cost = finding["cost"].get("ms_per_step")
    return "" if cost is None else f" ({cost:.3g} ms per step)"
