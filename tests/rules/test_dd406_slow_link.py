from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding

SLOW = {"links": {"worst_efficiency": 0.2}, "step_budget": {"comm_transfer_ms": 60.0}}


def test_fires_for_the_group_with_the_share_a_good_link_would_save() -> None:
    found = the_finding("DD406", **SLOW)
    assert found.culprits.groups == ("0",)
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.MEDIUM
    assert abs((found.cost.ms_per_step or 0) - 48.0) < 1e-9
    assert evidence(found, "efficiency").value == 0.2


def test_normal_efficiency_is_quiet() -> None:
    assert findings("DD406", **{**SLOW, "links": {"worst_efficiency": 0.6}}) == []


def test_a_slow_link_that_is_hidden_does_not_matter() -> None:
    assert findings("DD406", links={"worst_efficiency": 0.2}, step_budget={"comm_transfer_ms": 4.0}) == []


def test_host_only_jobs_have_no_expected_link() -> None:
    assert findings("DD406", job_facts={"device_kind": "cpu"}) == []
