from ddiag.rulekit import Severity
from tests.rules.checking import evidence, findings, the_finding

BLOCKING = {"blocking_launch_share": 0.98, "launch_gap_ms": 80.0}


def test_fires_when_nearly_all_launches_block() -> None:
    found = the_finding("DD804", host_launch=BLOCKING)
    assert found.severity is Severity.CRITICAL
    assert found.culprits.where == "CUDA_LAUNCH_BLOCKING=1"
    assert evidence(found, "blocking launches").value == 0.98


def test_a_few_blocking_calls_are_quiet() -> None:
    assert findings("DD804", host_launch={**BLOCKING, "blocking_launch_share": 0.3}) == []


def test_unknown_is_quiet() -> None:
    assert findings("DD804", host_launch={**BLOCKING, "blocking_launch_share": None}) == []
