from ddiag.rulekit import Severity
from tests.rules.checking import evidence, findings, the_finding

EVERY = {"accumulation": 4, "synced_backwards": 4, "exposed_ms": 40.0, "reductions_per_optimizer_step": 160.0}


def test_fires_with_the_redundant_share_as_cost() -> None:
    found = the_finding("DD801", shard_units=None, grad_buckets=EVERY)
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 30.0
    assert "all 4 micro-batches" in found.title
    assert evidence(found, "reducing").limit == 1


def test_no_sync_in_use_is_quiet() -> None:
    assert findings("DD801", shard_units=None, grad_buckets={**EVERY, "synced_backwards": 1}) == []


def test_no_accumulation_is_quiet() -> None:
    assert findings("DD801", shard_units=None, grad_buckets={**EVERY, "accumulation": 1, "synced_backwards": 1}) == []


def test_sharded_gradients_must_be_reduced_each_time() -> None:
    assert findings("DD801", grad_buckets=EVERY) == []


def test_hidden_reductions_cost_little() -> None:
    few = {**EVERY, "exposed_ms": 4.0}
    assert the_finding("DD801", shard_units=None, grad_buckets=few).severity is Severity.INFO
    assert findings("DD801", shard_units=None, grad_buckets={**EVERY, "exposed_ms": 0.5}) == []
