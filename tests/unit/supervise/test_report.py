"""What happens after the job: the diagnosis aside, its limits, the lines on stderr, the copy to a URL."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddiag.errors import UsageError
from ddiag.supervise.report import analyze, summary
from ddiag.supervise.side_process import Limits, run_aside
from ddiag.supervise.signals import hold
from ddiag.supervise.upload import check_url, copy, upload


@pytest.fixture
def mask() -> Iterator[set[int]]:
    """Signals are held back, as in the supervisor."""
    before = hold()
    yield before
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _finding(rule: str, severity: str, *, fix: str = "do it") -> dict[str, Any]:
    return {"rule": rule, "severity": severity, "title": f"title of {rule}", "cost": {"ms_per_step": 2.5}, "fix": [fix]}


def test_the_diagnosis_in_a_few_lines(tmp_path: Path) -> None:
    findings = [_finding(f"DD{number}", "warning") for number in range(5)]
    verdict = {"status": "degraded", "headline": "It is slow."}
    found = {"verdict": verdict, "findings": [_finding("DD9", "info"), *findings]}
    (tmp_path / "diagnosis.json").write_text(json.dumps(found))
    lines = list(summary(tmp_path))
    assert lines[0] == "degraded: It is slow."
    assert lines[1:3] == ["  warning DD0 title of DD0 (2.5 ms per step)", "    fix: do it"]
    assert lines[-1] == "  and 2 more"
    assert not any("DD9" in line for line in lines)


def test_a_consequence_names_its_cause_and_no_cost_is_said_twice(tmp_path: Path) -> None:
    cause = _finding("DD1", "warning") | {"title": "too slow, 2.5 ms per step"}
    effect = _finding("DD2", "critical") | {"explained_by": "DD1"}
    verdict = {"status": "degraded", "headline": "It is slow."}
    (tmp_path / "diagnosis.json").write_text(json.dumps({"verdict": verdict, "findings": [cause, effect]}))
    lines = [line for line in summary(tmp_path) if "fix" not in line]
    assert lines[1:] == [
        "  warning DD1 too slow, 2.5 ms per step",
        "  critical DD2 title of DD2 (2.5 ms per step) (due to DD1)",
    ]


@pytest.mark.parametrize(
    ("ms", "words"), [(3456.7, "3.46 s"), (123.4, "123 ms"), (2.5, "2.5 ms"), (0.0794, "0.0794 ms")]
)
def test_costs_are_written_without_exponents(tmp_path: Path, ms: float, words: str) -> None:
    found = _finding("DD1", "warning") | {"cost": {"ms_per_step": ms}}
    verdict = {"status": "degraded", "headline": "It is slow."}
    (tmp_path / "diagnosis.json").write_text(json.dumps({"verdict": verdict, "findings": [found]}))
    assert list(summary(tmp_path))[1] == f"  warning DD1 title of DD1 ({words} per step)"


def test_work_aside_that_succeeds_leaves_nothing(tmp_path: Path, mask: set[int]) -> None:
    log = tmp_path / "log"
    code = "import os, ddiag; print('words'); assert os.nice(0) >= 10; open(sys.argv[1], 'w').close()"
    assert run_aside(code, [str(tmp_path / "made")], log, Limits(mask, 60.0)) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_work_aside_that_takes_too_long_is_ended(tmp_path: Path, mask: set[int]) -> None:
    began = time.monotonic()
    assert (
        run_aside("import time; time.sleep(60)", [], tmp_path / "log", Limits(mask, 0.5)) == "it took longer than 0.5 s"
    )
    assert time.monotonic() - began < 20


def test_a_signal_that_ends_jobs_ends_it(tmp_path: Path, mask: set[int]) -> None:
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    assert run_aside("import time; time.sleep(60)", [], tmp_path / "log", Limits(mask, 50.0)) == "SIGTERM came"
    timer.join()


def test_why_it_failed_is_said_in_a_line(tmp_path: Path, mask: set[int]) -> None:
    (tmp_path / "nothing").mkdir()
    assert "nothing" in analyze(tmp_path / "nothing", Limits(mask, 60.0))
    code = "print('noise'); print('Error: the reason'); sys.exit(2)"
    assert run_aside(code, [], tmp_path / "log", Limits(mask, 60.0)) == "the reason"
    assert run_aside("sys.exit(4)", [], tmp_path / "log", Limits(mask, 60.0)).startswith("it ended with 4, see ")


def test_a_run_is_copied_to_a_url(tmp_path: Path, mask: set[int]) -> None:
    run = tmp_path / "run-1"
    (run / "ranks" / "a0").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "ranks" / "a0" / "r.ring").write_bytes(b"x" * 5000)
    (run / ".hidden").write_text("no")
    target = f"file://{tmp_path}/bucket/below"
    assert upload(run, target, Limits(mask, 60.0)) == ""
    copied = tmp_path / "bucket" / "below" / "run-1"
    files = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    assert files == {"run.json", "ranks/a0/r.ring"}
    copy(str(run), target)  # again: a second attempt replaces what is there
    assert (copied / "ranks" / "a0" / "r.ring").stat().st_size == 5000


def test_a_url_nothing_here_can_write_to_is_refused_before_the_job(tmp_path: Path) -> None:
    check_url("file:///x")
    with pytest.raises(UsageError, match="nosuch"):
        check_url("nosuch://bucket")
