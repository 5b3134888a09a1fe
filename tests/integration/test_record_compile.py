"""``torch.compile`` captures the same graphs, breaks as often and computes the same with the recorder as without."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit import Severity
from ddiag.schema.phases import AGAIN, Kind, Phase
from ddiag.schema.steps import StepFlag
from tests.integration import launching
from tests.integration.launching import SCRIPTS
from tests.integration.recording import Recording, record
from tests.shared import other_python

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_compiled_code_does_not_notice(tmp_path: Path) -> None:
    told = []
    for variables in ({"DDIAG_DISABLE": "1"}, {}):
        command = [sys.executable, "-W", "error::UserWarning:torch._dynamo", str(SCRIPTS / "record_compile.py")]
        done = launching.execute(command, launching.environment(tmp_path, **variables))
        assert done.returncode == 0, done.stderr
        told.append((done.stdout, done.stderr.count("Warning")))
    without, recorded = told
    cases = [json.loads(line) for line in without[0].splitlines()]
    assert len(cases) == 7
    assert all(graphs.get("unique_graphs") for _case, graphs, _breaks, _result in cases)
    assert [json.loads(line) for line in recorded[0].splitlines()] == cases
    assert recorded[1] == without[1]
    assert launching.errors(tmp_path) == ""
    (files,) = launching.processes(tmp_path).values()
    # Four trainings of four steps are recorded; in the others the optimizer's step itself is compiled.
    assert len(launching.steps_of(files)) >= 13
    compiled = [step for step in launching.steps_of(files) if step.flags & StepFlag.COMPILED]
    assert compiled
    assert all(0 < step.phase_ns[Phase.COMPILE] < step.end_ns - step.start_ns for step in compiled)


def compiling(folder: Path, kind: str, python: str = sys.executable) -> Recording:
    recording = record(folder, "compiled", kind, python=python)
    assert recording.errors == []
    assert [len(rank.steps) for rank in recording.ranks] == [48, 48]
    return recording


BUSY_MACHINE = ("DD209", "DD401", "DD504")
"""Others took the processors from the job, and so from this rank and from that, and from the threads that send."""
LATE = range(3, 48, 4)
"""Steps with a length of their own."""


@pytest.mark.long
@pytest.mark.parametrize("environment", [".venv", ".venv-torch214"])
def test_compilations_are_marked(tmp_path: Path, environment: str) -> None:
    recording = compiling(tmp_path, "one_rank", str(other_python(environment)))
    for rank, late in zip(recording.ranks, ((), LATE), strict=True):
        marks = [one for one in rank.records if one.kind == Kind.PHASE and one.op == Phase.COMPILE]
        again = [one.step for one in marks if (rank.label(one) or "").startswith(AGAIN)]
        assert sorted(set(again)) == list(late)
        assert {one.step for one in marks} == {0, *late}
        assert [step.step for step in rank.steps if step.flags & StepFlag.COMPILED] == [0, *late]
        spent = sum(one.end_ns - one.start_ns for one in marks)
        assert sum(step.phase_ns[Phase.COMPILE] for step in rank.steps) == pytest.approx(spent, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["always", "one_rank", "once", "never"])
def test_recompilation_is_found_where_it_does_not_end(tmp_path: Path, kind: str) -> None:
    diagnosis = diagnose(load([str(compiling(tmp_path, kind).run)]))
    found = [one for one in diagnosis.findings if one.severity is not Severity.INFO and one.rule not in BUSY_MACHINE]
    shown = [(one.rule, one.title) for one in found]
    assert [one.rule for one in found] == (["DD205"] if kind in ("always", "one_rank") else []), shown
