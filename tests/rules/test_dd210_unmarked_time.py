from ddiag.rulekit import Abstain, Severity
from tests.rules.checking import check, findings, the_finding

CPU = {"device_kind": "cpu"}


def test_time_of_the_scripts_own_on_every_rank_is_told() -> None:
    found = the_finding("DD210", job_facts=CPU, unmarked_time={"ms": 40.0})
    assert found.severity is Severity.WARNING
    assert found.title == "the script takes 40.0 ms per step (20%) of its own after optimizer, on every rank"
    assert found.cost.ms_per_step == 40.0
    assert the_finding("DD210", job_facts=CPU, unmarked_time={"ms": 90.0}).severity is Severity.CRITICAL


def test_one_rank_alone_is_late_and_not_this_rules_subject() -> None:
    one = {rank: 60.0 if rank == 3 else 2.0 for rank in range(8)}
    assert findings("DD210", job_facts=CPU, unmarked_time={"ms_per_step": one}) == []
    assert findings("DD210", job_facts={**CPU, "ranks": (0, 1)}, unmarked_time={"ms_per_step": {0: 60.0, 1: 2.0}}) == []


def test_a_frameworks_bookkeeping_is_let_be() -> None:
    assert findings("DD210", job_facts=CPU, unmarked_time={"ms": 15.0}) == []
    assert findings("DD210", job_facts=CPU, step_ms=20.0, unmarked_time={"ms": 4.0}) == []


def test_where_cpus_are_short_everything_takes_longer() -> None:
    (said,) = check("DD210", job_facts=CPU, unmarked_time={"ms": 40.0}, host_load={"runnable_per_cpu": 2.0})
    assert isinstance(said, Abstain)


def test_on_a_device_it_may_be_waiting_for_results() -> None:
    assert check("DD210", unmarked_time={"ms": 40.0}) == []


def test_a_trace_has_no_phases() -> None:
    assert check("DD210", job_facts=CPU, unmarked_time=None) == []
