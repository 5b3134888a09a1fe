from ddiag.rulekit import Severity
from tests.factories import MIB
from tests.rules.checking import findings, the_finding

HUGE = {"count": 1, "bytes": 900 * MIB, "best_bytes": 40 * MIB, "predicted_gain_ms": 36.0, "exposed_ms": 44.0}


def test_fires_for_one_giant_bucket_with_the_simulated_gain() -> None:
    found = the_finding("DD404", grad_buckets=HUGE)
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 36.0
    assert "bucket_cap_mb=40" in found.fix[0]
    assert "900 MiB" in found.title


def test_without_a_simulation_the_exposed_tail_counts() -> None:
    found = the_finding("DD404", grad_buckets={**HUGE, "predicted_gain_ms": None, "best_bytes": None})
    assert found.cost.ms_per_step == 44.0


def test_several_buckets_do_start_during_backward() -> None:
    assert findings("DD404", grad_buckets={**HUGE, "count": 6}) == []


def test_accumulation_is_counted_per_backward() -> None:
    several = {**HUGE, "count": 4, "accumulation": 4, "synced_backwards": 4}
    assert "1 reduction of up to" in the_finding("DD404", grad_buckets=several).title


def test_a_small_model_in_one_bucket_is_fine() -> None:
    assert findings("DD404", grad_buckets={**HUGE, "bytes": 20 * MIB}) == []


def test_no_gain_from_splitting_is_quiet() -> None:
    assert findings("DD404", grad_buckets={**HUGE, "best_bytes": 1024 * MIB}) == []
    assert findings("DD404", grad_buckets={**HUGE, "predicted_gain_ms": 4.0}) == []


def test_unknown_sizes_are_not_judged() -> None:
    assert findings("DD404", grad_buckets={**HUGE, "total_bytes": 0}) == []
