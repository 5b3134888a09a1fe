from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import findings, the_finding

TOGETHER = {"late_together": (4, 5, 6, 7), "wait_ms_per_step": 40.0}


def test_names_all_of_them_and_the_host_they_share() -> None:
    found = the_finding("DD507", late_ranks=TOGETHER)
    assert found.culprits.ranks == (4, 5, 6, 7)
    assert found.culprits.hosts == ("node-b",)
    assert found.victims == (0, 1, 2, 3)
    assert "ranks 4–7, all of host node-b, arrive late together" in found.title
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.MEDIUM
    assert found.cost.ms_per_step == 20.0


def test_a_host_with_ranks_on_time_is_not_blamed() -> None:
    assert the_finding("DD507", late_ranks={**TOGETHER, "late_together": (5, 6)}).culprits.hosts == ()
    assert the_finding("DD507", late_ranks={**TOGETHER, "late_together": (3, 4, 5, 6, 7)}).culprits.hosts == ()


def test_quiet_without_such_ranks_or_when_it_does_not_matter() -> None:
    assert findings("DD507", late_ranks={**TOGETHER, "late_together": ()}) == []
    assert findings("DD507", late_ranks={**TOGETHER, "wait_ms_per_step": 8.0}) == []


def test_waiting_where_the_hosts_set_the_pace_is_quiet() -> None:
    assert findings("DD507", late_ranks=TOGETHER, step_budget={"host_ms": 150.0}) == []
    assert findings("DD507", late_ranks=TOGETHER, step_budget={"host_ms": 150.0, "compute_ms": {6: 60.0}})
