"""Real trainings that hang under ``ddiag run``, diagnosed while they hang, with the rank and the line at fault."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import PYTHON, TORCHRUN, environment, eventually, only_run, recorded

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")

JOB = Path(__file__).parent / "jobs" / "hang.py"
RANKS = 4
WITHIN_S = 60.0
"""From the moment at which the job stops to the diagnosis."""
START_S = 120.0
"""For torch to start on a machine that is busy."""


@dataclass
class Running:
    """A job under ``ddiag run``."""

    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    mark: Path

    @property
    def run(self) -> Path:
        return only_run(self.out)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stopped_at(self) -> float:
        """Unix time at which the training went wrong."""
        return eventually(lambda: self.mark.exists() and self.mark.stat().st_mtime, within_s=START_S)

    def diagnosis(self, name: str) -> dict[str, Any]:
        """The diagnosis that appears in the run folder, and not later than :data:`WITHIN_S`."""
        began = self.stopped_at()
        path = eventually(lambda: next(iter(self.run.glob(name)), None), within_s=WITHIN_S + 20)
        took_s = path.stat().st_mtime - began
        print(f"diagnosed {took_s:.1f} s after it stopped")
        assert took_s < WITHIN_S, self.said()
        return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def job(folder: Path, kind: str, culprit: int, *options: str, tier: str = "", **more: str) -> Iterator[Running]:
    out, log, mark = folder / "runs", folder / "stderr.txt", folder / "mark"
    launch = [*TORCHRUN, "--standalone", f"--nproc-per-node={RANKS}", str(JOB), kind, str(culprit)]
    variables = environment(MARK=str(mark), CHECKPOINT=str(folder / "checkpoint"), DDIAG_TIER=tier, **more)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*recorded(out, *options), *launch],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            yield Running(process, out, log, mark)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The job and everything it started, a stopped rank too; all of it is of one session."""
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        try:
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    process.wait()


def line_of(kind: str) -> str:
    """``hang.py:36``: where the job says that *kind* goes wrong."""
    lines = JOB.read_text(encoding="utf-8").splitlines()
    (number,) = (place for place, line in enumerate(lines, 1) if line.endswith(f"# here: {kind}"))
    return f"hang.py:{number}"


def long(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("kind", "culprit"),
    [
        ("loader", 2),
        ("different", 3),
        long("skip", 1),
        long("cleanup", 2),
        long("stopped", 3),
        long("gil", 2),
        long("evaluation", 0),
        long("uneven", 1),
        long("loader", 0),
        long("different", 0),
    ],
)
def test_a_hang_is_diagnosed_while_it_lasts(tmp_path: Path, kind: str, culprit: int) -> None:
    with job(tmp_path, kind, culprit, "--no-report") as running:
        found = running.diagnosis("hang/diagnosis-1.json")
        assert running.process.poll() is None, "it is left as it is"
        first = found["findings"][0]
        assert found["verdict"]["status"] == "stalled"
        assert first["culprits"]["ranks"] == [culprit], running.said()
        assert line_of(kind) in first["culprits"]["where"], running.said()
        assert sorted(first["victims"]["ranks"]) == [rank for rank in range(RANKS) if rank != culprit]
        said = eventually(lambda: re.search(rb"STALLED.*", running.log.read_bytes()), within_s=10)
        assert f"ank {culprit} (".encode() in said[0]


@pytest.mark.long
def test_two_ranks_that_send_to_each_other_are_both_named(tmp_path: Path) -> None:
    with job(tmp_path, "send", 0, "--no-report") as running:
        found = running.diagnosis("hang/diagnosis-1.json")
        first = found["findings"][0]
        assert first["culprits"]["ranks"] == [0, 1], running.said()
        assert line_of("send") in first["culprits"]["where"], running.said()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "culprit"), [("sizes", 1), ("killed", 1), ("killed", 0)])
def test_what_ends_the_job_at_once_is_diagnosed_at_its_end(tmp_path: Path, kind: str, culprit: int) -> None:
    with job(tmp_path, kind, culprit) as running:
        found = running.diagnosis("diagnosis.json")
        first = found["findings"][0]
        assert found["verdict"]["status"] == "crashed", running.said()
        assert first["culprits"]["ranks"] == [culprit], running.said()
        if kind == "sizes":
            assert line_of(kind) in first["culprits"]["where"], running.said()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "culprit"), [("skip", 1), ("stopped", 2)])
def test_when_the_timeout_has_ended_the_job_it_is_still_the_hang_that_is_to_blame(
    tmp_path: Path, kind: str, culprit: int
) -> None:
    with job(tmp_path, kind, culprit, TIMEOUT_S="50") as running:
        running.stopped_at()
        assert running.process.wait(timeout=240) != 0
        found = json.loads((running.run / "diagnosis.json").read_text(encoding="utf-8"))
        assert found["verdict"]["status"] == "stalled", running.said()
        assert found["findings"][0]["culprits"]["ranks"] == [culprit], running.said()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["loader", "different"])
def test_without_the_native_kernel_too(tmp_path: Path, kind: str) -> None:
    with job(tmp_path, kind, 2, "--no-report", tier="dispatch") as running:
        found = running.diagnosis("hang/diagnosis-1.json")
        assert found["findings"][0]["culprits"]["ranks"] == [2], running.said()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["first", "checkpoint", "slow", "export"])
def test_long_work_is_no_hang(tmp_path: Path, kind: str) -> None:
    with job(tmp_path, kind, -1, "--no-report") as running:
        assert running.process.wait(timeout=160) == 0, running.said()
        assert "no progress" not in running.said()
        assert not (running.run / "hang").exists()


@pytest.mark.long
def test_a_job_that_hangs_is_ended_when_the_user_wants_that(tmp_path: Path) -> None:
    with job(tmp_path, "stopped", 1, "--no-report", "--hang-after", "5", "--on-hang", "kill") as running:
        running.diagnosis("hang/diagnosis-1.json")
        assert running.process.wait(timeout=90) != 0
        assert "--on-hang kill" in running.said()


@pytest.mark.long
def test_a_running_job_is_asked_for_its_stacks(tmp_path: Path) -> None:
    with job(tmp_path, "skip", 1, "--no-report", "--hang-after", "0") as running:
        running.stopped_at()
        time.sleep(2.0)
        command = [PYTHON, "-m", "ddiag", "hang", "--live", str(running.run), "--json", str(tmp_path / "live.json")]
        done = subprocess.run(command, env=environment(), capture_output=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
        assert f"skip  {line_of('skip')}" in done.stdout.decode()
