"""``torch.compile`` captures the same graphs, breaks as often and computes the same with the recorder as without."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration import launching
from tests.integration.launching import SCRIPTS

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
