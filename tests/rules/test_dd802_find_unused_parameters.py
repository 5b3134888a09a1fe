from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding


def test_fires_with_the_search_time() -> None:
    found = the_finding("DD802", python_overhead={"find_unused_ms": 12.0})
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 12.0
    assert evidence(found, "share of the step").value == 0.06


def test_python_stacks_inflate_it() -> None:
    found = the_finding("DD802", python_overhead={"find_unused_ms": 12.0}, job_facts={"with_stack": True})
    assert found.confidence is Confidence.LOW


def test_a_cheap_search_is_quiet() -> None:
    assert findings("DD802", python_overhead={"find_unused_ms": 1.0}) == []


def test_a_search_that_was_not_seen_is_not_zero() -> None:
    assert findings("DD802", python_overhead={"find_unused_ms": None}) == []
