from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ddiag.model.run import Coverage, InputFile
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Severity, View
from ddiag.rulekit.diagnosis import Diagnosis, Status, conclude, headline
from tests.factories import make_signals
from tests.unit.rulekit.making import finding, loaded


def concluded(*found: Finding, coverage: Coverage | None = None, **signals: Any) -> Diagnosis:
    """The diagnosis of a job in which one rule finds *found*."""

    def check(view: View, limits: Any) -> Iterator[Finding | Abstain]:
        yield from found

    return conclude(make_signals(**signals), coverage or Coverage(), [loaded(check)], version="1.2.3")


def test_a_warning_makes_the_job_degraded_and_is_the_headline() -> None:
    diagnosis = concluded(finding(title="the loader is slow", ms=50.0))
    assert diagnosis.verdict.status is Status.DEGRADED
    assert diagnosis.verdict.primary == "DD101"
    assert diagnosis.verdict.headline == "The loader is slow, costing 50 ms of each step (50%); high confidence."


def test_information_alone_leaves_the_job_healthy() -> None:
    diagnosis = concluded(finding(severity=Severity.INFO))
    assert diagnosis.verdict.status is Status.HEALTHY
    assert diagnosis.verdict.primary is None
    assert diagnosis.worst() is Severity.INFO


def test_a_clean_bill_says_what_was_checked() -> None:
    seen = Coverage(ranks_seen=tuple(range(8)), ranks_expected=tuple(range(16)))
    verdict = concluded(coverage=seen).verdict
    assert (
        verdict.headline == "No problem found: 1 rules checked 8 of 16 ranks over 5 steps of 200 ms, 90% of it compute."
    )


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        ({"step_budget": None}, "no work on a device or host"),
        ({"steps": 1}, "nothing stands out, but it covers one step; profile 5 or more"),
        ({"steps": 1, "step_budget": {"source": "window"}}, "the trace marks no steps"),
        ({"step_budget": {"n_steps": 0}}, "no complete step"),
        ({"step_budget": {"comm_wait_ms": 40.0}}, "20% of the step is waiting for other ranks and no rule can say"),
        (
            {"collectives": {"unseen_ms": 20.0}, "step_budget": {"comm_wait_ms": 20.0}},
            "20% of the step is exposed communication with ranks that left no evidence",
        ),
        (
            {"collectives": {"unseen_ms": 40.0}, "step_budget": {"comm_wait_ms": 0.0}},
            "20% of the step is exposed communication with ranks that left no evidence",
        ),
        ({"step_budget": {"compute_ms": 0.0}}, "only 0% of the step is compute"),
        ({"step_budget": {"host_ms": 150.0}}, "only 16% of the step is compute and no rule can say why (75% is idling"),
    ],
)
def test_silence_over_too_little_evidence_is_not_health(signals: dict[str, Any], words: str) -> None:
    verdict = concluded(**signals).verdict
    assert verdict.status is Status.INCONCLUSIVE
    assert words in verdict.headline


def test_a_trace_with_many_unusable_records_is_not_health() -> None:
    damaged = Coverage(inputs=(InputFile("a.json", "kineto", 10, events=1000),), dropped_records=300)
    verdict = concluded(coverage=damaged).verdict
    assert verdict.status is Status.INCONCLUSIVE
    assert "300 of 1,000 records have no usable time" in verdict.headline
    scratched = Coverage(inputs=damaged.inputs, dropped_records=20)
    assert concluded(coverage=scratched).verdict.status is Status.HEALTHY


def test_nothing_judged_is_not_health() -> None:
    rule = loaded(lambda signals, limits: iter([Abstain("why", "how")]))
    assert conclude(make_signals(), Coverage(), [rule]).verdict.status is Status.INCONCLUSIVE


def test_a_problem_in_a_single_step_is_still_a_problem() -> None:
    assert concluded(finding(), steps=1).verdict.status is Status.DEGRADED


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ranks": (7,), "title": "rank 7 arrives last"}, "Rank 7 arrives last, costing 10 ms of each step (10%)"),
        ({"ranks": (7,), "title": "the input is late"}, "Rank 7: the input is late, costing 10 ms of each step (10%)"),
        (
            {"culprits": Culprits(ranks=(7,), hosts=("n1",)), "title": "rank 7 arrives last"},
            "Rank 7 on n1 arrives last, costing 10 ms of each step (10%)",
        ),
        (
            {"culprits": Culprits(ranks=(7,), hosts=("n1",)), "title": "rank 7 on n1 arrives last"},
            "Rank 7 on n1 arrives last, costing 10 ms of each step (10%)",
        ),
        ({"ranks": (3,), "title": "rank 37 waits"}, "Rank 3: rank 37 waits, costing 10 ms of each step (10%)"),
        ({"culprits": Culprits(groups=("dp",)), "title": "slow"}, "Group dp: slow, costing 10 ms of each step (10%)"),
        ({"title": "a stall of 10.0 ms per step"}, "A stall of 10.0 ms per step"),
        ({"title": "10% of the step is input"}, "10% of the step is input, costing 10 ms of each step"),
        ({"ms": None, "title": "memory is full"}, "Memory is full"),
        ({"cost": Cost(2500.0, 0.4), "title": "slow"}, "Slow, costing 2.5 s of each step (40%)"),
    ],
)
def test_the_headline_names_culprit_and_cost_once(changes: dict[str, Any], sentence: str) -> None:
    assert headline(finding(**changes)) == f"{sentence}; high confidence."


def test_a_users_failing_rule_is_told_in_the_coverage() -> None:
    rule = loaded(lambda signals, limits: 1 / 0, built_in=False)  # type: ignore[arg-type, return-value]
    diagnosis = conclude(make_signals(), Coverage(notes=("first",)), [loaded(id="DD102"), rule])
    assert diagnosis.coverage.notes == ("first", *diagnosis.rule_failures)
    assert "ZeroDivisionError" in diagnosis.rule_failures[0]


def test_the_contract_is_made_of_plain_types_and_short_numbers() -> None:
    coverage = Coverage(
        inputs=(InputFile("a.json", "kineto", 10, rank=0),),
        unreadable=(("b.json", "is empty"),),
        ranks_seen=(0,),
        ranks_expected=(0, 1),
    )
    exact = finding(evidence=(Evidence("stall", 1 / 3, "ms", 1e-9 / 3), Evidence("seq", 4190123456, "seq")))
    document = concluded(exact, coverage=coverage).to_dict()
    evidence = document["findings"][0]["evidence"]
    assert [item["value"] for item in evidence] == [0.333333, 4190123456]
    assert evidence[0]["limit"] == 3.33333e-10
    assert document["coverage"]["unreadable"] == [{"path": "b.json", "reason": "is empty"}]
    assert document["coverage"]["ranks_missing"] == [1]
    assert document["ddiag_version"] == "1.2.3"


def test_the_worst_of_none_is_none() -> None:
    assert concluded().worst() is None


def test_low_confidence_is_said() -> None:
    assert headline(finding(confidence=Confidence.LOW)).endswith("; low confidence.")


def test_a_name_keeps_its_spelling_at_the_start_of_the_headline() -> None:
    assert concluded(finding(title="aten::item lets the device run dry", ms=50.0)).verdict.headline.startswith("aten::")


def test_one_rank_of_many_is_no_clean_bill() -> None:
    one = {"collectives": {"matched_ranks": 1}, "job_facts": {"ranks": (3,), "world_size": 8}}
    verdict = concluded(late_ranks=None, **one).verdict
    assert verdict.status is Status.INCONCLUSIVE
    assert "nothing stands out on rank 3" in verdict.headline
    alone = concluded(job_facts={"ranks": (0,), "world_size": 1}).verdict
    assert alone.status is Status.HEALTHY
