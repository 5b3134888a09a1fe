from ddiag.rulekit import Severity
from tests.rules.checking import evidence, findings, the_finding

ON = {"anomaly_mode": True}


def test_fires_with_the_idle_time_behind_its_checks() -> None:
    found = the_finding("DD1103", python_overhead=ON, sync_points={"stall_ms": 20.0})
    assert "up to 20.0 ms per step" in found.title
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 20.0


def test_a_quarter_of_the_step_is_critical() -> None:
    assert the_finding("DD1103", python_overhead=ON, sync_points={"stall_ms": 60.0}).severity is Severity.CRITICAL


def test_on_is_a_warning_even_where_idle_time_is_not_known() -> None:
    found = the_finding("DD1103", python_overhead=ON, sync_points=None)
    assert found.severity is Severity.WARNING
    assert evidence(found, "idle after blocking calls").value == "not known"


def test_off_is_quiet() -> None:
    assert findings("DD1103", sync_points={"stall_ms": 60.0}) == []
