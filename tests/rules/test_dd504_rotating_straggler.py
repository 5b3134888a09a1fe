from ddiag.rulekit import Abstain, Severity
from tests.rules.checking import check, evidence, findings, the_finding

ROTATING = {"rotating": True, "wait_ms_per_step": 40.0}


def test_fires_without_naming_any_rank() -> None:
    found = the_finding("DD504", late_ranks=ROTATING)
    assert found.severity is Severity.WARNING
    assert found.culprits.ranks == ()
    assert found.victims == ()
    assert evidence(found, "waiting").value == 0.2


def test_a_rank_that_stands_out_is_another_rules_subject() -> None:
    assert findings("DD504", late_ranks={**ROTATING, "persistent_rank": 3}) == []


def test_ordinary_jitter_is_quiet() -> None:
    assert findings("DD504", late_ranks={**ROTATING, "wait_ms_per_step": 10.0}) == []


def test_jitter_of_very_short_steps_is_quiet() -> None:
    short = {"host_ms": 0.0, "sync_ms": 0.0, "step_ms": 7.0}
    assert (
        findings("DD504", step_budget=short, late_ranks={**ROTATING, "wait_ms_per_step": 0.9, "wait_share": 0.13}) == []
    )
    assert findings("DD504", step_budget=short, late_ranks={**ROTATING, "wait_ms_per_step": 1.1, "wait_share": 0.16})


def test_waiting_where_the_hosts_set_the_pace_is_quiet() -> None:
    assert findings("DD504", late_ranks=ROTATING, step_budget={"host_ms": 150.0}) == []
    assert findings("DD504", late_ranks=ROTATING, step_budget={"host_ms": {**dict.fromkeys(range(8), 150.0), 2: 50.0}})
    assert findings("DD504", late_ranks=ROTATING, step_budget={"host_ms": 150.0, "sync_ms": 10.0})


def test_two_steps_cannot_show_rotation() -> None:
    (said,) = check("DD504", steps=2, late_ranks=ROTATING)
    assert isinstance(said, Abstain)
    assert "chance" in said.reason


def test_the_gc_figure_is_given_when_known_and_its_absence_said() -> None:
    assert evidence(the_finding("DD504", late_ranks=ROTATING), "garbage collection").value == 0.0
    without = the_finding("DD504", late_ranks=ROTATING, python_overhead=None)
    assert evidence(without, "garbage collection").value == "not recorded"


SHARED_CPUS = {"runnable_per_cpu": 3.0, "waiting_share": 0.5}


def test_ranks_that_share_cpus_are_late_by_turns_without_being_uneven() -> None:
    (said,) = check("DD504", job_facts={"device_kind": "cpu"}, late_ranks=ROTATING, host_load=SHARED_CPUS)
    assert isinstance(said, Abstain)
    assert "3.0 threads want to run per CPU" in said.reason


def test_on_cpus_of_their_own_or_on_devices_it_speaks() -> None:
    assert findings("DD504", job_facts={"device_kind": "cpu"}, late_ranks=ROTATING)
    assert findings("DD504", late_ranks=ROTATING, host_load=SHARED_CPUS)


def test_ranks_that_compute_on_cpus_nobody_watched_are_not_said_to_be_uneven() -> None:
    (said,) = check("DD504", job_facts={"device_kind": "cpu"}, late_ranks=ROTATING, host_load=None)
    assert isinstance(said, Abstain)
    assert "ddiag run" in said.capture
    assert findings("DD504", late_ranks=ROTATING, host_load=None)
