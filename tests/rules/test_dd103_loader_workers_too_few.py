import pytest

from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding

SPIKES = {"stall_ms": 40.0, "spike_period": 4}
FOUR = {"dataloader_workers": 4}


def test_fires_with_the_number_of_workers_that_would_do() -> None:
    found = the_finding("DD103", steps=12, input_wait=SPIKES, python_overhead=FOUR)
    assert "every 4 steps: 4 workers cannot keep up" in found.title
    assert evidence(found, "workers needed").value == 5
    assert "num_workers=5" in found.fix[0]
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert found.cost.ms_per_step == 40.0


def test_needs_grow_with_the_stall() -> None:
    found = the_finding("DD103", steps=12, input_wait={**SPIKES, "stall_ms": 150.0}, python_overhead=FOUR)
    assert evidence(found, "workers needed").value == 16


@pytest.mark.parametrize("stated", [None, 8])
def test_a_period_that_nobody_confirms_lowers_confidence(stated: int | None) -> None:
    found = the_finding("DD103", steps=12, input_wait=SPIKES, python_overhead={"dataloader_workers": stated})
    assert found.confidence is Confidence.MEDIUM


def test_without_a_period_it_is_not_about_the_number_of_workers() -> None:
    assert findings("DD103", steps=12, input_wait={"stall_ms": 40.0}) == []


def test_less_than_two_periods_are_no_period() -> None:
    assert findings("DD103", steps=7, input_wait=SPIKES) == []


def test_spikes_that_cost_little_are_quiet() -> None:
    assert findings("DD103", steps=12, input_wait={"stall_ms": 6.0, "spike_period": 4}) == []


def test_a_loader_without_workers_belongs_to_another_rule() -> None:
    assert findings("DD103", steps=12, input_wait={**SPIKES, "single_process": True}) == []


def test_absent_optional_evidence_takes_the_workers_from_the_period() -> None:
    found = the_finding("DD103", steps=12, input_wait=SPIKES, python_overhead=None)
    assert evidence(found, "workers").source == "taken from the period"
