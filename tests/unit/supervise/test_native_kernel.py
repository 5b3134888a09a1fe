"""The build of the native kernel after a job: only where it serves, and out of everybody's way."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddiag.schema.folder import process_files
from ddiag.supervise.native_kernel import BUILD, build_for_next_run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")
REPORTER = """#!{python}
import json, os, sys
found = dict(argv=sys.argv[1:], nice=os.nice(0), scheduler=os.sched_getscheduler(0), session=os.getsid(0),
             pid=os.getpid(), streams=[os.readlink(f"/proc/self/fd/{{n}}") for n in (0, 1, 2)],
             disabled=os.environ.get("DDIAG_DISABLE"), path=os.environ.get("PYTHONPATH"))
open({out!r} + ".new", "w").write(json.dumps(found))
os.rename({out!r} + ".new", {out!r})
"""


class Job:
    """A run folder as a job leaves it, and an interpreter that tells how it was called."""

    def __init__(self, folder: Path) -> None:
        self.run, self.told = folder / "run", folder / "told.json"
        self.python = folder / "python"
        self.python.write_text(REPORTER.format(python=sys.executable, out=str(self.told)))
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "CXX": "true"}

    def ran(self, tier: str, torch: str = "2.13.0") -> Job:
        files = process_files(self.run, attempt=0, rank=0, pid=77)
        files.folder.mkdir(parents=True, exist_ok=True)
        files.ring.touch()
        facts = [{"kind": "process", "executable": str(self.python), "torch": torch}, {"kind": "tier", "tier": tier}]
        files.facts.write_text("".join(json.dumps(fact) + "\n" for fact in facts) + '{"kind": "cut sh')
        return self

    def build(self, **more: str) -> int | None:
        return build_for_next_run(self.run, {**self.environment, **more}, set())

    def seen(self) -> dict[str, Any]:
        until = time.monotonic() + 30
        while not self.told.exists() and time.monotonic() < until:
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(self.told.read_text())
        return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_job_recorded_without_the_kernel_has_it_built_out_of_the_way(job: Job) -> None:
    pid = job.ran("dispatch").build(PYTHONPATH="/somewhere")
    assert pid is not None
    seen = job.seen()
    os.waitpid(pid, 0)
    assert seen["argv"] == [str(BUILD), "--if-missing", "--quiet"]
    assert seen["session"] == seen["pid"] == pid, "signals for the job do not reach it"
    assert (seen["nice"], seen["scheduler"]) == (19, os.SCHED_IDLE)
    assert seen["streams"] == ["/dev/null"] * 3, "it holds no pipe of the job open"
    assert (seen["disabled"], seen["path"]) == ("1", "/somewhere")


def test_it_is_tried_once_a_day_and_for_every_torch(job: Job) -> None:
    first = job.ran("hooks").build()
    assert first is not None
    assert job.build() is None
    second = job.ran("hooks", torch="2.14.1").build()
    assert second is not None
    for pid in (first, second):
        os.waitpid(pid, 0)


@pytest.mark.parametrize("tier", ["native", "none"])
def test_nothing_is_built_where_it_would_not_serve(job: Job, tier: str) -> None:
    assert job.ran(tier).build() is None


@pytest.mark.parametrize("given", [{"DDIAG_BUILD": "0"}, {"DDIAG_TIER": "dispatch"}, {"CXX": "no-such-compiler"}])
def test_nothing_is_built_against_the_users_word_or_without_a_compiler(job: Job, given: dict[str, str]) -> None:
    assert job.ran("dispatch").build(**given) is None


def test_an_interpreter_of_another_host_or_a_home_that_cannot_be_written_is_let_be(job: Job) -> None:
    job.ran("dispatch")
    assert job.build(HOME="/proc/nowhere") is None
    job.python.unlink()
    assert job.build() is None
