import pytest

from ddiag.rulekit import Confidence, Severity
from tests.factories import MIB
from tests.rules.checking import evidence, findings, the_finding

SMALL = {"count": 400, "bytes": MIB // 4, "best_bytes": 40 * MIB, "predicted_gain_ms": 24.0, "exposed_ms": 30.0}


def test_fires_with_the_recommended_size_and_predicted_gain() -> None:
    found = the_finding("DD403", grad_buckets=SMALL)
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert found.fix[0] == "DDP(bucket_cap_mb=40)"
    assert found.cost.ms_per_step == 24.0
    assert "400 gradient reductions" in found.title
    assert "256 KiB" in found.title
    assert evidence(found, "predicted gain").value == 24.0


def test_without_a_fit_the_exposed_time_is_the_cost_and_confidence_is_lower() -> None:
    found = the_finding(
        "DD403", grad_buckets={**SMALL, "predicted_gain_ms": None, "best_bytes": None, "alpha_us": None}
    )
    assert found.confidence is Confidence.MEDIUM
    assert found.cost.ms_per_step == 30.0


def test_small_buckets_that_cost_nothing_are_quiet() -> None:
    assert findings("DD403", grad_buckets={**SMALL, "predicted_gain_ms": 1.0}) == []


def test_few_small_buckets_are_quiet() -> None:
    assert findings("DD403", grad_buckets={**SMALL, "count": 8}) == []


def test_default_sized_buckets_are_quiet_even_when_exposed() -> None:
    assert findings("DD403", grad_buckets={**SMALL, "bytes": 25 * MIB}) == []


def test_unknown_sizes_are_not_judged() -> None:
    assert findings("DD403", grad_buckets={**SMALL, "total_bytes": 0, "median_bytes": 0}) == []


@pytest.mark.parametrize("issued", ["after_backward", "synchronous"])
def test_reductions_waited_for_one_by_one_would_only_save_their_latency(issued: str) -> None:
    found = the_finding("DD403", grad_buckets={**SMALL, "issued": issued, "alpha_us": 70.0})
    assert found.cost.ms_per_step == pytest.approx((400 - 4) * 0.07)
    assert findings("DD403", grad_buckets={**SMALL, "issued": issued, "alpha_us": 5.0}) == []
    assert findings("DD403", grad_buckets={**SMALL, "issued": issued, "alpha_us": None}) == []
