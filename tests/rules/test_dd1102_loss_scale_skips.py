import pytest

from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding


def test_fires_with_the_share_of_wasted_updates() -> None:
    found = the_finding("DD1102", steps=40, optimizer_step={"skipped_steps": 8})
    assert "skipped 8 of 40 updates (20%)" in found.title
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert found.cost.ms_per_step == pytest.approx(40.0)
    assert evidence(found, "skipped updates").value == 8


def test_half_of_all_updates_is_critical() -> None:
    assert the_finding("DD1102", steps=10, optimizer_step={"skipped_steps": 6}).severity is Severity.CRITICAL


def test_accumulation_counts_updates_not_steps() -> None:
    found = the_finding("DD1102", steps=40, optimizer_step={"skipped_steps": 5, "steps_per_optimizer_step": 4.0})
    assert "5 of 10 updates (50%)" in found.title


def test_one_skip_is_healthy() -> None:
    assert findings("DD1102", steps=20, optimizer_step={"skipped_steps": 1}) == []


def test_rare_skips_are_healthy() -> None:
    assert findings("DD1102", steps=100, optimizer_step={"skipped_steps": 3}) == []


def test_a_short_capture_may_be_the_scale_settling() -> None:
    assert findings("DD1102", steps=4, optimizer_step={"skipped_steps": 3}) == []


def test_few_steps_lower_confidence() -> None:
    assert the_finding("DD1102", steps=10, optimizer_step={"skipped_steps": 3}).confidence is Confidence.MEDIUM


def test_a_tenth_of_all_updates_is_too_many() -> None:
    assert the_finding("DD1102", steps=40, optimizer_step={"skipped_steps": 4}).severity is Severity.WARNING


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD1102", optimizer_step=None) == []
