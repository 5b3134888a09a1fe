"""The honesty test: a planted fault is what the diagnosis puts first, and a healthy job is left in peace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddiag import api
from ddiag.rulekit.diagnosis import Diagnosis
from ddiag.rulekit.finding import Finding, Severity
from tools.synth import SCENARIOS, Job, generate

HEALTHY = sorted(name for name in SCENARIOS if not SCENARIOS[name].rules)
FAULTY = sorted(name for name in SCENARIOS if SCENARIOS[name].rules)


def _diagnose(job: Job, folder: Path) -> Diagnosis:
    generate(job, folder)
    return api.diagnose(api.load([str(folder)], jobs=1))


def _alarms(diagnosis: Diagnosis) -> list[str]:
    return [_line(finding) for finding in diagnosis.findings if finding.severity is not Severity.INFO]


def _line(finding: Finding) -> str:
    return f"{finding.rule} {finding.severity.value} {finding.title} {finding.culprits.ranks}"


@pytest.mark.parametrize("name", FAULTY)
def test_the_planted_fault_comes_first_with_its_culprit(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    diagnosis = _diagnose(scenario.job, tmp_path)
    assert diagnosis.findings, "nothing was found"
    first = diagnosis.findings[0]
    assert first.rule in scenario.rules, "\n".join(_line(finding) for finding in diagnosis.findings)
    assert first.culprits.ranks == scenario.ranks
    assert first.severity is not Severity.INFO


@pytest.mark.parametrize("name", FAULTY)
def test_nobody_else_is_accused(name: str, tmp_path: Path) -> None:
    """Whatever else is found, no innocent rank is named as a culprit of a cause."""
    scenario = SCENARIOS[name]
    diagnosis = _diagnose(replace(scenario.job, seed=1), tmp_path)
    accused = {
        rank for finding in diagnosis.findings if finding.explained_by is None for rank in finding.culprits.ranks
    }
    assert accused <= set(scenario.ranks), "\n".join(_line(finding) for finding in diagnosis.findings)


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_healthy_job_is_left_in_peace(name: str, seed: int, tmp_path: Path) -> None:
    assert not _alarms(_diagnose(replace(SCENARIOS[name].job, seed=seed), tmp_path))


@pytest.mark.parametrize("flavour", ["cuda", "cuda_old", "rocm", "cpu"])
def test_a_healthy_job_is_left_in_peace_whatever_wrote_its_traces(flavour: str, tmp_path: Path) -> None:
    # CPU ranks talk over gloo at a few GB/s; a model trained there is small.
    layer_bytes = Job().layer_bytes // (28 if flavour == "cpu" else 1)
    assert not _alarms(_diagnose(replace(Job(), flavour=flavour, layer_bytes=layer_bytes), tmp_path))
