from ddiag.rulekit import Abstain, Severity
from tests.rules.checking import check, evidence, findings, the_finding

HEAVY = {
    "collectives": {"exposed_ms": 60.0, "overlapped_ms": 80.0},
    "step_budget": {"comm_transfer_ms": 58.0, "comm_wait_ms": 2.0},
}


def test_fires_when_much_is_exposed_although_most_overlaps() -> None:
    found = the_finding("DD401", **HEAVY)
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 58.0
    assert evidence(found, "share of the step").value == 0.29
    assert found.cost.gpu_hours is not None
    assert abs(found.cost.gpu_hours - 0.29 * 8 * 24) < 0.01


def test_waiting_for_a_late_rank_is_not_volume() -> None:
    waiting = {"step_budget": {"comm_transfer_ms": 8.0, "comm_wait_ms": 52.0}}
    assert findings("DD401", **{**HEAVY, **waiting}) == []


def test_missing_overlap_is_another_rules_subject() -> None:
    assert findings("DD401", **{**HEAVY, "collectives": {"exposed_ms": 60.0, "overlapped_ms": 5.0}}) == []


def test_one_rank_cannot_tell_transfer_from_waiting() -> None:
    one = {**HEAVY["collectives"], "matched_ranks": 1}
    (said,) = check("DD401", **{**HEAVY, "collectives": one})
    assert isinstance(said, Abstain)
    assert "29%" in said.reason
    assert "two or more ranks" in said.capture


def test_one_rank_with_little_exposed_has_nothing_to_abstain_from() -> None:
    assert check("DD401", collectives={"exposed_ms": 12.0, "overlapped_ms": 80.0, "matched_ranks": 1}) == []


def test_just_below_the_limit_is_quiet() -> None:
    assert findings("DD401", collectives={"exposed_ms": 15.8, "overlapped_ms": 80.0}) == []


def test_it_abstains_where_members_without_a_trace_may_be_the_late_ones() -> None:
    partly = {**HEAVY["collectives"], "unseen_ms": 45.0}
    (said,) = check("DD401", **{**HEAVY, "collectives": partly})
    assert isinstance(said, Abstain)
    assert "left no evidence" in said.reason
