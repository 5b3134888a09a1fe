import polars as pl
import pytest

from ddiag.rulekit import Abstain, Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

BOUND = {"launch_gap_ms": 50.0, "median_kernel_us": 6.0, "launches_per_step": 9000.0, "host_busy_share": 0.97}
HUNGRY = {"host_launch": BOUND, "step_budget": {"host_ms": 50.0}}


def long_gaps(ms: float) -> pl.DataFrame:
    rows = [{"rank": r, "step": s, "gap_ms": ms} for r in range(8) for s in range(5)]
    return pl.DataFrame(rows)


def test_fires_with_launches_kernel_size_and_gap() -> None:
    found = the_finding("DD201", **HUNGRY)
    assert "9,000 launches per step" in found.title
    assert "6.0 µs" in found.title
    assert "50.0 ms (25% of the step)" in found.title
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert evidence(found, "idle between launches").value == 50.0
    assert found.cost.step_share == pytest.approx(0.25)


def test_critical_when_a_third_of_the_step_is_idle() -> None:
    found = the_finding("DD201", host_launch={**BOUND, "launch_gap_ms": 70.0}, step_budget={"host_ms": 70.0})
    assert found.severity is Severity.CRITICAL


def test_tiny_kernels_without_gaps_are_not_launch_bound() -> None:
    assert findings("DD201", host_launch={**BOUND, "launch_gap_ms": 4.0}) == []


def test_gaps_that_the_loader_or_a_blocking_call_explains_are_not_launching() -> None:
    assert findings("DD201", host_launch=BOUND, step_budget={"host_ms": 4.0, "input_ms": 46.0}) == []


def test_large_kernels_with_gaps_are_another_cause() -> None:
    assert findings("DD201", **{**HUNGRY, "host_launch": {**BOUND, "median_kernel_us": 80.0}}) == []


def test_few_launches_cannot_make_the_host_the_bottleneck() -> None:
    assert findings("DD201", **{**HUNGRY, "host_launch": {**BOUND, "launches_per_step": 60.0}}) == []


def test_a_host_outside_calls_is_not_busy_launching() -> None:
    assert findings("DD201", **{**HUNGRY, "host_launch": {**BOUND, "host_busy_share": 0.4}}) == []


@pytest.mark.parametrize(("launches", "slow"), [(9000.0, False), (2000.0, True)])
def test_a_host_that_needs_long_for_each_launch_is_pointed_out(launches: float, slow: bool) -> None:
    found = the_finding("DD201", **{**HUNGRY, "host_launch": {**BOUND, "launches_per_step": launches}})
    assert evidence(found, "host time per launch").value == pytest.approx(200e3 * 0.97 / launches, abs=0.05)
    assert any("unusually long" in step for step in found.fix) is slow


def test_long_gaps_belong_to_another_rule() -> None:
    assert findings("DD201", **{**HUNGRY, "host_launch": {**BOUND, "long_gaps": long_gaps(40.0)}}) == []


def test_long_gaps_are_not_counted_as_launching() -> None:
    found = the_finding("DD201", **{**HUNGRY, "host_launch": {**BOUND, "long_gaps": long_gaps(20.0)}})
    assert found.cost.ms_per_step == pytest.approx(30.0)


def test_a_large_share_of_a_tiny_step_is_noise() -> None:
    little = {"host_launch": {**BOUND, "launch_gap_ms": 0.9}, "step_budget": {"host_ms": 0.9}}
    assert findings("DD201", step_ms=8.0, **little) == []


def test_recorded_stacks_lower_confidence_and_say_why() -> None:
    found = the_finding("DD201", job_facts={"with_stack": True}, **HUNGRY)
    assert found.confidence is Confidence.MEDIUM
    assert "with_stack=False" in found.doubt


def test_a_job_that_replays_graphs_is_not_told_to_use_them() -> None:
    eager = the_finding("DD201", **HUNGRY)
    graphs = the_finding("DD201", **{**HUNGRY, "host_launch": {**BOUND, "graph_launches_per_step": 12.0}})
    assert any("reduce-overhead" in step for step in eager.fix)
    assert not any("reduce-overhead" in step for step in graphs.fix)


def test_an_unfused_optimizer_is_part_of_the_advice() -> None:
    slow = {"implementation": "for_loop", "kernels_per_step": 3000.0}
    found = the_finding("DD201", optimizer_step=slow, **HUNGRY)
    assert any("fused=True" in step and "3000" in step for step in found.fix)


def test_a_host_only_trace_has_no_launches_to_judge() -> None:
    assert findings("DD201", job_facts={"device_kind": "cpu"}) == []


def test_one_step_with_python_stacks_does_not_decide() -> None:
    (said,) = check("DD201", steps=1, job_facts={"with_stack": True}, **HUNGRY)
    assert isinstance(said, Abstain)
    assert "with_stack=False" in said.capture


@pytest.mark.parametrize("change", [{"median_kernel_us": 25.0}, {"launches_per_step": 150.0}])
def test_moderately_small_kernels_and_few_launches_can_still_bind(change: dict[str, float]) -> None:
    assert len(findings("DD201", **{**HUNGRY, "host_launch": {**BOUND, **change}})) == 1


def test_mostly_long_gaps_are_not_launching_even_if_the_short_ones_add_up() -> None:
    job = {
        "host_launch": {**BOUND, "launch_gap_ms": 60.0, "long_gaps": long_gaps(32.0)},
        "step_budget": {"host_ms": 60.0},
    }
    assert findings("DD201", **job) == []


def test_a_few_optimizer_kernels_are_no_lever() -> None:
    few = {"implementation": "foreach", "kernels_per_step": 9.0}
    assert not any("fused=True" in step for step in the_finding("DD201", optimizer_step=few, **HUNGRY).fix)
