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


def test_a_recorded_search_that_never_found_anything_is_told() -> None:
    found = the_finding("DD802", unused_search={"ever_unused": False, "looks": 40})
    assert found.severity is Severity.INFO
    assert "no parameter was unused in 40 iterations" in found.title


def test_a_search_that_found_something_or_was_hardly_looked_at_is_let_be() -> None:
    assert findings("DD802", unused_search={"ever_unused": True}) == []
    assert findings("DD802", unused_search={"ever_unused": False, "looks": 3}) == []


def test_nobody_is_told_to_stop_a_search_that_is_needed() -> None:
    needed = the_finding("DD802", python_overhead={"find_unused_ms": 20.0}, unused_search={"ever_unused": True})
    assert not any("find_unused_parameters=False" in step for step in needed.fix)
