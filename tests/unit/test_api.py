from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ddiag
from ddiag import api
from ddiag.errors import InputError, UsageError
from ddiag.model.run import Run
from tests.unit.rulekit.making import write_rule
from tools.synth import SCENARIOS, generate


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late")
    generate(replace(SCENARIOS["late_compute_clocks"].job, ranks=3, steps=4), folder)
    return folder


@pytest.fixture(scope="module")
def run(traces: Path) -> Run:
    return ddiag.load_run([str(traces)])


def test_two_lines_of_python_give_the_diagnosis(run: Run) -> None:
    diagnosis = ddiag.diagnose(run)
    assert diagnosis.verdict.primary == "DD501"
    assert diagnosis.findings[0].culprits.ranks == (2,)
    assert diagnosis.ddiag_version == ddiag.__version__


def test_progress_is_told_file_by_file(traces: Path) -> None:
    told: list[tuple[int, int]] = []
    ddiag.load_run([str(traces)], jobs=1, progress=lambda done, total, name: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_nothing_usable_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        ddiag.load_run([str(tmp_path / "missing.json")])


def test_own_rules_and_limits_take_part(run: Run, tmp_path: Path) -> None:
    write_rule(tmp_path / "rules", ("wait.stall_share > limits.stall_share", "limits.loud"))
    limits = tmp_path / "ddiag.toml"
    limits.write_text("[limits]\nACME101.loud = true\n")
    quiet = ddiag.diagnose(run, rules=[str(tmp_path / "rules")])
    loud = ddiag.diagnose(run, rules=[str(tmp_path / "rules")], limits=str(limits))
    assert "ACME101" not in {finding.rule for finding in quiet.findings}
    assert "ACME101" in {finding.rule for finding in loud.findings}


def test_chosen_steps_are_the_only_steady_ones(run: Run) -> None:
    from ddiag.model.signals import StepBudget

    steps = run.coverage.steps
    budget = api.examine(run, api.rules_for(), steps=(steps[1], steps[1])).signals.get(StepBudget)
    assert budget is not None
    assert budget.n_steps == 1
    assert set(budget.excluded_steps) == set(steps) - {steps[1]}
    with pytest.raises(UsageError, match=f"the evidence has steps {steps[0]} to {steps[-1]}"):
        api.examine(run, api.rules_for(), steps=(10**6, 10**6))


def test_clocks_that_differ_are_found_from_the_collectives(run: Run) -> None:
    offsets = api.clock_offsets(api.examine(run, api.rules_for()))
    assert offsets[0] == 0
    assert max(abs(ns) for ns in offsets.values()) > 100_000
