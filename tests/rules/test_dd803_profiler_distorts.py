from ddiag.rulekit import Severity
from tests.rules.checking import findings, the_finding


def test_says_that_host_times_are_upper_bounds() -> None:
    found = the_finding("DD803", job_facts={"with_stack": True}, step_budget={"host_ms": 60.0})
    assert found.severity is Severity.INFO
    assert "30%" in found.title


def test_stacks_without_host_time_are_harmless() -> None:
    assert findings("DD803", job_facts={"with_stack": True}) == []


def test_host_time_without_stacks_is_real() -> None:
    assert findings("DD803", step_budget={"host_ms": 60.0}) == []


def test_host_only_traces_have_no_idle_device() -> None:
    host = {"with_stack": True, "device_kind": "cpu"}
    assert findings("DD803", job_facts=host, step_budget={"host_ms": 60.0}) == []
