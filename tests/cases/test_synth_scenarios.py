"""The honesty test: a planted fault is what the diagnosis puts first, and a healthy job is left in peace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddiag import api
from ddiag.rulekit.diagnosis import Diagnosis, Status
from ddiag.rulekit.finding import Finding, Severity
from tools.synth import SCENARIOS, Job, generate

FAULTY = sorted(name for name in SCENARIOS if SCENARIOS[name].rules)
UNDECIDABLE = sorted(name for name in SCENARIOS if SCENARIOS[name].undecidable)
HEALTHY = sorted(set(SCENARIOS) - set(FAULTY) - set(UNDECIDABLE))


def _diagnose(job: Job, folder: Path) -> Diagnosis:
    generate(job, folder)
    return api.diagnose(api.load([str(folder)], jobs=1))


def _alarms(diagnosis: Diagnosis) -> list[str]:
    return [_line(finding) for finding in diagnosis.findings if finding.severity is not Severity.INFO]


def _line(finding: Finding) -> str:
    return f"{finding.rule} {finding.severity.value} {finding.title} {finding.culprits.ranks}"


def _check(name: str, seed: int, folder: Path) -> None:
    """The planted fault comes first, and no innocent rank is named as the culprit of any cause."""
    scenario = SCENARIOS[name]
    findings = _diagnose(replace(scenario.job, seed=seed), folder).findings
    told = "\n".join(map(_line, findings)) or "nothing was found"
    assert findings, told
    assert findings[0].rule in scenario.rules, told
    assert findings[0].culprits.ranks == scenario.ranks, told
    assert findings[0].severity is not Severity.INFO, told
    accused = {rank for finding in findings if finding.explained_by is None for rank in finding.culprits.ranks}
    assert accused <= set(scenario.ranks), told


@pytest.mark.parametrize("name", FAULTY)
def test_the_planted_fault_comes_first_and_nobody_else_is_accused(name: str, tmp_path: Path) -> None:
    _check(name, 0, tmp_path)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_is_left_in_peace(name: str, tmp_path: Path) -> None:
    assert not _alarms(_diagnose(SCENARIOS[name].job, tmp_path))


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_without_the_deciding_evidence_it_says_so(name: str, tmp_path: Path) -> None:
    diagnosis = _diagnose(SCENARIOS[name].job, tmp_path)
    assert not _alarms(diagnosis)
    assert diagnosis.verdict.status is Status.INCONCLUSIVE
    assert "left no evidence" in diagnosis.verdict.headline


@pytest.mark.parametrize("flavour", ["cuda_old", "rocm", "cpu"])
def test_a_healthy_job_is_left_in_peace_whatever_wrote_its_traces(flavour: str, tmp_path: Path) -> None:
    assert not _alarms(_diagnose(_in_flavour(Job(), flavour), tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", FAULTY)
def test_the_verdict_does_not_hang_on_chance(name: str, seed: int, tmp_path: Path) -> None:
    _check(name, seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("flavour", ["cuda", "cuda_old", "rocm", "cpu"])
@pytest.mark.parametrize("name", HEALTHY)
def test_peace_does_not_hang_on_chance(name: str, flavour: str, seed: int, tmp_path: Path) -> None:
    job = _in_flavour(replace(SCENARIOS[name].job, seed=seed), flavour)
    assert not _alarms(_diagnose(job, tmp_path))


def _in_flavour(job: Job, flavour: str) -> Job:
    """CPU ranks talk over gloo at a few GB/s, and what is trained there is small."""
    return replace(job, flavour=flavour, layer_bytes=job.layer_bytes // (28 if flavour == "cpu" else 1))
