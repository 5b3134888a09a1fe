import pytest

from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding

INSIDE = {
    "stall_ms": 60.0,
    "single_process": True,
    "iterator": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
}


def test_fires_with_the_stall_and_the_option_to_set() -> None:
    found = the_finding("DD102", input_wait=INSIDE)
    assert "num_workers=0" in found.title
    assert "60.0 ms" in found.title
    assert found.severity is Severity.CRITICAL
    assert evidence(found, "input stall").value == 60.0
    assert "num_workers=8" in found.fix[0]
    assert found.cost.step_share == pytest.approx(0.3)


@pytest.mark.parametrize(("cpus", "workers"), [(2, 1), (8, 1), (24, 2), (64, 7), (256, 8)])
def test_no_more_workers_than_there_are_cpus_for_eight_ranks(cpus: int, workers: int) -> None:
    found = the_finding("DD102", input_wait=INSIDE, host_load={"cpus": cpus})
    assert f"DataLoader(num_workers={workers}," in found.fix[0]
    assert f"dataloader_num_workers={workers} " in found.fix[1]


def test_the_usual_number_where_cpus_are_not_known() -> None:
    assert "DataLoader(num_workers=8," in the_finding("DD102", input_wait=INSIDE, host_load=None).fix[0]


def test_names_the_same_culprit_as_the_general_rule_so_that_both_become_one_finding() -> None:
    general, special = the_finding("DD101", input_wait=INSIDE), the_finding("DD102", input_wait=INSIDE)
    assert general.culprits == special.culprits


def test_a_loader_in_the_process_that_costs_nothing_is_no_fault() -> None:
    assert findings("DD102", input_wait={**INSIDE, "stall_ms": 0.5, "wait_ms": 30.0}) == []


def test_below_the_limit_is_quiet() -> None:
    assert findings("DD102", input_wait={**INSIDE, "stall_ms": 9.0}) == []


@pytest.mark.parametrize("kind", [False, None])
def test_worker_processes_or_an_unknown_loader_are_quiet(kind: bool | None) -> None:
    assert findings("DD102", input_wait={**INSIDE, "single_process": kind}) == []


def test_recorded_stacks_lower_confidence() -> None:
    found = the_finding("DD102", input_wait=INSIDE, job_facts={"with_stack": True})
    assert found.confidence is Confidence.MEDIUM


def test_a_job_without_devices_is_not_told_of_devices() -> None:
    cpu = the_finding("DD102", job_facts={"device_kind": "cpu"}, input_wait=INSIDE)
    assert "training waits" in cpu.title
    assert "device" not in cpu.title + cpu.why
