from ddiag.rulekit import Severity
from tests.factories import GIB
from tests.rules.checking import findings, the_finding

ROOT = {"gathers_per_step": 2.0, "bytes": 6 * GIB, "gather_exposed_ms": 50.0, "scatter_exposed_ms": 20.0}


def test_fires_for_root_only_wrapping() -> None:
    found = the_finding("DD408", shard_units=ROOT)
    assert found.severity is Severity.CRITICAL
    assert found.cost.ms_per_step == 70.0
    assert "6 GiB" in found.title


def test_a_unit_per_block_is_quiet() -> None:
    assert findings("DD408", shard_units={**ROOT, "gathers_per_step": 66.0}) == []


def test_a_small_model_may_be_one_unit() -> None:
    assert findings("DD408", shard_units={**ROOT, "bytes": 1 << 20}) == []


def test_hidden_gathers_are_quiet() -> None:
    assert findings("DD408", shard_units={**ROOT, "gather_exposed_ms": 1.0, "scatter_exposed_ms": 1.0}) == []
