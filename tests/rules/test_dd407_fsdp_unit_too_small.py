from ddiag.rulekit import Severity
from tests.factories import MIB
from tests.rules.checking import findings, the_finding

TINY = {"count": 300, "bytes": MIB, "gather_exposed_ms": 20.0}


def test_fires_with_counts_and_cost() -> None:
    found = the_finding("DD407", shard_units=TINY)
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 20.0
    assert "600 parameter gathers" in found.title
    assert "1 MiB" in found.title


def test_hidden_small_gathers_are_quiet() -> None:
    assert findings("DD407", shard_units={**TINY, "gather_exposed_ms": 2.0}) == []


def test_many_large_gathers_are_a_large_model() -> None:
    assert findings("DD407", shard_units={**TINY, "bytes": 50 * MIB}) == []


def test_few_small_gathers_are_a_small_model() -> None:
    assert findings("DD407", shard_units={**TINY, "count": 10}) == []


def test_unknown_sizes_are_not_judged() -> None:
    assert findings("DD407", shard_units={**TINY, "median_gather_bytes": 0}) == []


def test_unsharded_jobs_have_no_subject() -> None:
    assert findings("DD407", shard_units=None) == []
