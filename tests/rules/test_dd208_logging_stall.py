from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding


def test_fires_with_the_time_per_step() -> None:
    found = the_finding("DD208", python_overhead={"logging_ms_per_step": 14.0})
    assert "14.0 ms per step (7% of the step)" in found.title
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert evidence(found, "logging").value == 14.0


def test_a_few_per_cent_is_information() -> None:
    assert the_finding("DD208", python_overhead={"logging_ms_per_step": 5.0}).severity is Severity.INFO


def test_a_log_line_is_quiet() -> None:
    assert findings("DD208", python_overhead={"logging_ms_per_step": 3.0}) == []


def test_under_a_millisecond_is_noise_however_short_the_step() -> None:
    assert findings("DD208", step_ms=21.0, python_overhead={"logging_ms_per_step": 0.9}) == []


def test_recorded_stacks_lower_confidence() -> None:
    found = the_finding("DD208", python_overhead={"logging_ms_per_step": 14.0}, job_facts={"with_stack": True})
    assert found.confidence is Confidence.MEDIUM


def test_the_rank_that_logs_is_named() -> None:
    found = the_finding("DD208", python_overhead={"logging_ms_per_step": 14.0, "logging_ranks": (0,)})
    assert found.culprits.ranks == (0,)
    assert "of rank 0 takes 14.0 ms" in found.title


def test_where_all_log_nobody_is_named() -> None:
    every = {"logging_ms_per_step": 14.0, "logging_ranks": tuple(range(8))}
    assert the_finding("DD208", python_overhead=every).culprits.ranks == ()
