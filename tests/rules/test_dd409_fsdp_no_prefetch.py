from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import findings, the_finding

SERIAL = {"prefetched_share": 0.1, "gather_exposed_ms": 30.0}


def test_fires_with_the_exposed_gathers_as_cost() -> None:
    found = the_finding("DD409", shard_units=SERIAL)
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert found.cost.ms_per_step == 30.0
    assert "10%" in found.title


def test_prefetched_gathers_are_quiet_even_when_exposed() -> None:
    assert findings("DD409", shard_units={**SERIAL, "prefetched_share": 0.9}) == []


def test_unknown_prefetch_is_not_judged() -> None:
    assert findings("DD409", shard_units={**SERIAL, "prefetched_share": None}) == []


def test_root_only_wrapping_has_nothing_to_prefetch() -> None:
    assert findings("DD409", shard_units={**SERIAL, "gathers_per_step": 2.0}) == []


def test_hidden_gathers_are_quiet() -> None:
    assert findings("DD409", shard_units={**SERIAL, "gather_exposed_ms": 5.0}) == []
