from ddiag.rulekit import Severity
from tests.rules.checking import check, evidence, findings, the_finding

CROWDED = {"runnable_per_cpu": 4.5, "waiting_share": 0.9, "busy_share": 1.0}


def test_other_work_on_the_host_is_a_warning_that_names_it() -> None:
    found = the_finding("DD209", host_load={**CROWDED, "job_share": 0.2})
    assert found.severity is Severity.WARNING
    assert found.culprits.hosts == ("node0",)
    assert "4.5 threads want to run per CPU; this job gets 20% of their time" in found.title
    assert evidence(found, "runnable threads").value == 4.5
    assert found.cost.ms_per_step is not None


def test_a_crowd_of_the_jobs_own_is_information() -> None:
    assert the_finding("DD209", host_load={**CROWDED, "job_share": 0.9}).severity is Severity.INFO


def test_a_job_that_waits_for_its_own_is_no_outside_crowd() -> None:
    waiting = {**CROWDED, "busy_share": 0.6, "job_share": 0.5}
    assert the_finding("DD209", host_load=waiting).severity is Severity.INFO
    assert the_finding("DD209", host_load={**waiting, "busy_share": 0.9}).severity is Severity.WARNING


def test_waiting_for_late_input_is_not_put_on_the_crowd() -> None:
    late = {"late": {"rank": 3, "cause": "input", "input_ms": 30.0}, "wait_ms_per_step": 30.0}
    crowd = {**CROWDED, "job_share": 0.2}
    alone = the_finding("DD209", host_load=crowd, late_ranks={"wait_ms_per_step": 30.0, "rotating": True})
    beside = the_finding("DD209", host_load=crowd, late_ranks=late)
    assert beside.cost.ms_per_step is not None
    assert alone.cost.ms_per_step is not None
    assert beside.cost.ms_per_step < 0.5 * alone.cost.ms_per_step


def test_busy_cpus_alone_are_what_training_on_cpus_looks_like() -> None:
    assert findings("DD209", host_load={"runnable_per_cpu": 1.2, "busy_share": 1.0, "job_share": 1.0}) == []


def test_a_queue_in_which_nobody_waits_is_none() -> None:
    assert findings("DD209", host_load={"runnable_per_cpu": 3.0, "waiting_share": 0.1}) == []


def test_a_quota_and_a_hypervisor_are_told_apart() -> None:
    assert "quota holds the job back 30%" in the_finding("DD209", host_load={"throttled_share": 0.3}).title
    assert "hypervisor takes 25%" in the_finding("DD209", host_load={"steal_share": 0.25}).title


def test_unknown_is_not_zero() -> None:
    found = the_finding("DD209", host_load={**CROWDED, "waiting_share": None, "job_share": None})
    assert found.severity is Severity.INFO
    assert not [row for row in found.evidence if row.label == "this job's part"]


def test_a_trace_has_no_samples_and_hears_nothing_of_it() -> None:
    assert check("DD209", host_load=None) == []
