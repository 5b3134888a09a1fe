from ddiag.rulekit import Severity
from tests.rules.checking import findings, the_finding
from tests.rules.test_dd405_tiny_messages import summary


def barriers(**change: object) -> dict[str, object]:
    return {"summary": summary(**{"op": "barrier", "bytes": 0, "count_per_step": 1.0, "exposed_ms": 9.0, **change})}


def test_fires_and_counts_only_its_own_time_as_cost() -> None:
    found = the_finding("DD411", collectives=barriers())
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 6.0


def test_a_cheap_barrier_is_information() -> None:
    assert the_finding("DD411", collectives=barriers(exposed_ms=1.0, wait_ms=0.5)).severity is Severity.INFO


def test_a_barrier_around_a_checkpoint_is_quiet() -> None:
    assert findings("DD411", collectives=barriers(count_per_step=0.2)) == []


def test_unmatched_barriers_are_still_seen() -> None:
    assert findings("DD411", collectives=barriers(wait_ms=None))


def test_one_step_does_not_make_a_loop() -> None:
    assert findings("DD411", steps=1, collectives=barriers()) == []


def test_other_collectives_are_quiet() -> None:
    assert findings("DD411", collectives={"summary": summary()}) == []
