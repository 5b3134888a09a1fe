import pytest

from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding

STALLED = {"stall_ms": 60.0, "wait_ms": 66.0}


def test_names_the_stall_of_all_ranks_and_its_cost() -> None:
    found = the_finding("DD101", input_wait=STALLED)
    assert "every rank for 60.0 ms per step (30% of the step)" in found.title
    assert found.severity is Severity.CRITICAL
    assert found.confidence is Confidence.HIGH
    assert found.culprits.ranks == ()
    assert (evidence(found, "input stall").value, evidence(found, "input stall").limit) == (60.0, 10.0)
    assert found.cost.ms_per_step == 60.0
    assert found.cost.step_share == pytest.approx(0.3)
    assert found.cost.gpu_hours == pytest.approx(0.3 * 8 * 24)


def test_a_tenth_of_the_step_is_a_warning() -> None:
    assert the_finding("DD101", input_wait={"stall_ms": 20.0}).severity is Severity.WARNING


def test_waiting_while_the_device_still_works_is_quiet() -> None:
    assert findings("DD101", input_wait={"wait_ms": 150.0}) == []


def test_just_below_the_limit_is_quiet() -> None:
    assert findings("DD101", input_wait={"stall_ms": 9.9}) == []


def test_a_large_share_of_a_tiny_step_is_noise() -> None:
    assert findings("DD101", step_ms=21.0, input_wait={"stall_ms": 0.9}) == []


def test_the_one_late_rank_is_left_to_its_own_rule() -> None:
    late = {"late": {"rank": 3, "cause": "input", "input_ms": 56.0}}
    assert findings("DD101", input_wait={"stall_by_rank": {3: 60.0}}, late_ranks=late) == []


def test_a_late_rank_does_not_hide_that_all_ranks_starve() -> None:
    late = {"late": {"rank": 3, "cause": "input", "input_ms": 20.0}}
    stalls = {"stall_ms": 60.0, "stall_by_rank": {3: 80.0}}
    found = the_finding("DD101", input_wait=stalls, late_ranks=late)
    assert found.culprits.ranks == ()
    assert evidence(found, "worst rank's stall").source == "rank 3"


def test_a_rank_late_for_another_reason_does_not_hide_its_stall() -> None:
    late = {"late": {"rank": 3, "cause": "compute", "compute_ms": 38.0}}
    found = the_finding("DD101", input_wait={"stall_by_rank": {3: 60.0}}, late_ranks=late)
    assert found.culprits.ranks == (3,)


def test_some_ranks_are_named_when_nothing_says_who_is_late() -> None:
    found = the_finding("DD101", input_wait={"stall_by_rank": {1: 60.0, 5: 50.0}}, late_ranks=None)
    assert found.culprits.ranks == (1, 5)
    assert "ranks 1 and 5" in found.title
    assert found.cost.ms_per_step == 55.0


def test_most_ranks_stalled_is_a_matter_of_the_job() -> None:
    found = the_finding("DD101", input_wait={"stall_by_rank": dict.fromkeys(range(7), 60.0)}, late_ranks=None)
    assert found.culprits.ranks == ()
    assert "stalls 7 of 8 ranks" in found.title


def test_half_of_the_ranks_are_named() -> None:
    found = the_finding("DD101", input_wait={"stall_by_rank": dict.fromkeys(range(4), 60.0)}, late_ranks=None)
    assert found.culprits.ranks == (0, 1, 2, 3)


def test_a_single_rank_job_is_named_as_such() -> None:
    found = the_finding("DD101", job_facts={"ranks": (0,)}, input_wait=STALLED)
    assert "stalls rank 0" in found.title
    assert found.cost.gpu_hours == pytest.approx(0.3 * 24)


def test_the_fix_says_what_the_loader_has_now() -> None:
    late = {"input_wait": STALLED, "loader_workers": {"doing": {"empty_share": 1.0}}}
    alone = {**late, "input_wait": {**STALLED, "single_process": True}}
    assert "it is 0 now" in the_finding("DD101", **alone).fix[0]
    assert "above 4" in the_finding("DD101", **late, python_overhead={"dataloader_workers": 4}).fix[0]
    assert "raise" in the_finding("DD101", **late, python_overhead=None).fix[0]


def test_more_workers_are_no_help_where_batches_lie_ready() -> None:
    ready = {"input_wait": STALLED, "loader_workers": {"doing": {"empty_share": 0.0}}}
    assert not any("num_workers=" in fix for fix in the_finding("DD101", **ready).fix)
    assert "num_workers=" in the_finding("DD101", input_wait=STALLED, loader_workers=None).fix[0]


def test_recorded_stacks_lower_confidence_and_say_why() -> None:
    found = the_finding("DD101", input_wait=STALLED, job_facts={"with_stack": True})
    assert found.confidence is Confidence.MEDIUM
    assert "with_stack=False" in found.doubt


def test_one_step_lowers_confidence_and_is_never_critical() -> None:
    found = the_finding("DD101", steps=1, input_wait=STALLED)
    assert found.confidence is Confidence.MEDIUM
    assert found.severity is Severity.WARNING


def test_a_capture_without_steps_is_weak_evidence() -> None:
    found = the_finding("DD101", steps=1, step_budget={"source": "window"}, input_wait=STALLED)
    assert found.confidence is Confidence.LOW
    assert "whole capture" in evidence(found, "input stall").source


def test_host_only_job_has_no_device_hours() -> None:
    found = the_finding("DD101", job_facts={"device_kind": "cpu"}, input_wait=STALLED)
    assert found.cost.gpu_hours is None
