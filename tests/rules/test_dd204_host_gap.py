import polars as pl
import pytest

from ddiag.rulekit import Abstain, Confidence, Severity
from tests.factories import EPOCH_NS
from tests.rules.checking import check, evidence, findings, the_finding


def gaps(
    ms: float, *, ranks: tuple[int, ...] = tuple(range(8)), in_calls: float = 0.1, op: str | None = None
) -> pl.DataFrame:
    """One gap of *ms* in each of the five steps of each rank, *in_calls* of it inside recorded calls."""
    rows = [
        {"rank": r, "step": s, "start_ns": EPOCH_NS, "gap_ms": ms, "host_ms_in_calls": ms * in_calls, "top_op": op}
        for r in ranks
        for s in range(5)
    ]
    return pl.DataFrame(rows, schema_overrides={"top_op": pl.String})


def test_fires_with_the_gap_per_step_and_what_the_host_did() -> None:
    found = the_finding("DD204", host_launch={"long_gaps": gaps(30.0)})
    assert "30.0 ms per step (15% of the step)" in found.title
    assert "in plain Python or asleep" in found.title
    assert found.severity is Severity.WARNING
    assert found.culprits.ranks == ()
    assert evidence(found, "long gaps").value == 30.0
    assert evidence(found, "gaps").value == 1.0
    assert found.cost.step_share == pytest.approx(0.15)
    assert "py-spy" in found.fix[0]


def test_the_operator_that_fills_the_gaps_is_the_culprit() -> None:
    found = the_finding("DD204", host_launch={"long_gaps": gaps(60.0, in_calls=0.9, op="evaluate_metrics")})
    assert found.culprits.where == "evaluate_metrics"
    assert "in evaluate_metrics" in found.title
    assert found.severity is Severity.CRITICAL


def test_an_operator_that_fills_little_is_not_blamed() -> None:
    mixed = pl.concat([gaps(10.0, op="a"), gaps(12.0, op="b"), gaps(14.0, op="c")])
    assert the_finding("DD204", host_launch={"long_gaps": mixed}).culprits.where is None


def test_only_the_ranks_that_pause_are_named() -> None:
    late = {"late": {"rank": 3, "cause": "unknown"}}
    found = the_finding("DD204", host_launch={"long_gaps": gaps(30.0, ranks=(2, 3))}, late_ranks=late)
    assert found.culprits.ranks == (2, 3)


def test_the_one_late_rank_is_left_to_its_own_rule() -> None:
    late = {"late": {"rank": 3, "cause": "host", "host_ms": 28.0}}
    assert findings("DD204", host_launch={"long_gaps": gaps(30.0, ranks=(3,))}, late_ranks=late) == []


def test_rare_gaps_are_quiet() -> None:
    assert findings("DD204", host_launch={"long_gaps": gaps(9.0)}) == []


def test_no_gaps_and_no_evidence_of_gaps_are_quiet() -> None:
    assert findings("DD204", host_launch={"long_gaps": gaps(30.0).clear()}) == []
    assert findings("DD204", host_launch={"long_gaps": None}) == []


def test_recorded_stacks_lower_confidence() -> None:
    found = the_finding("DD204", host_launch={"long_gaps": gaps(30.0)}, job_facts={"with_stack": True})
    assert found.confidence is Confidence.MEDIUM


def test_one_step_cannot_tell_a_habit_from_an_accident() -> None:
    (said,) = check("DD204", steps=1, host_launch={"long_gaps": gaps(150.0).filter(pl.col("step") == 0)})
    assert isinstance(said, Abstain)
    assert "5+ steps" in said.capture


def test_a_single_pause_is_only_information() -> None:
    once = gaps(150.0, ranks=(0,)).head(1)
    found = the_finding("DD204", job_facts={"ranks": (0,)}, host_launch={"long_gaps": once})
    assert found.severity is Severity.INFO
    assert found.confidence is Confidence.LOW
    assert found.cost.ms_per_step == 30.0


def test_the_mark_of_the_step_itself_is_no_culprit() -> None:
    assert the_finding("DD204", host_launch={"long_gaps": gaps(30.0, op="ProfilerStep#7")}).culprits.where is None


PYTHON = {"launch_gap_ms": 50.0, "host_busy_share": 0.3, "median_kernel_us": 6.0, "launches_per_step": 900.0}


def test_short_gaps_with_the_host_outside_operators_are_pythons() -> None:
    job = {"host_launch": {**PYTHON, "long_gaps": gaps(8.0)}, "step_budget": {"host_ms": 50.0}}
    found = the_finding("DD204", **job)
    assert found.cost.ms_per_step == pytest.approx(42.0)
    assert "outside operators for 70% of the step" in found.title
    assert found.confidence is Confidence.MEDIUM
    assert evidence(found, "short gaps").value == 42.0


@pytest.mark.parametrize("change", [{"host_busy_share": 0.8}, {"launch_gap_ms": 19.0}, {"long_gaps": None}])
def test_short_gaps_of_another_cause_or_size_are_quiet(change: dict[str, object]) -> None:
    job = {"host_launch": {**PYTHON, "long_gaps": gaps(8.0).clear(), **change}, "step_budget": {"host_ms": 50.0}}
    assert findings("DD204", **job) == []


def test_a_host_inside_many_calls_is_said_to_be_so() -> None:
    found = the_finding("DD204", host_launch={"long_gaps": gaps(30.0, in_calls=0.4)})
    assert "with the host in several calls" in found.title
