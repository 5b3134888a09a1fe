import pytest

from ddiag.model.incident import Setting
from ddiag.model.signals_incident import Settings
from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

ON_CPU = {"offload": "optimizer", "cpu_optimizer_ms": 80.0}


def test_fires_with_the_idle_time_and_the_optimizer() -> None:
    found = the_finding("DD1002", copies=ON_CPU, optimizer_step={"name": "DeepSpeedCPUAdam", "implementation": "cpu"})
    assert "DeepSpeedCPUAdam runs on the CPU: the device idles 80.0 ms per step (40% of the step)" in found.title
    assert found.severity is Severity.CRITICAL
    assert evidence(found, "CPU optimizer").value == 80.0
    assert found.cost.ms_per_step == 80.0


def test_does_not_need_to_know_the_optimizer() -> None:
    assert the_finding("DD1002", copies=ON_CPU, optimizer_step=None).title.startswith("the optimizer runs on the CPU")


def test_a_short_update_is_quiet() -> None:
    assert findings("DD1002", copies={**ON_CPU, "cpu_optimizer_ms": 8.0}) == []


def test_under_two_milliseconds_is_noise_however_short_the_step() -> None:
    assert findings("DD1002", step_ms=21.0, copies={**ON_CPU, "cpu_optimizer_ms": 1.9}) == []


def test_recorded_stacks_lower_confidence() -> None:
    found = the_finding("DD1002", copies=ON_CPU, job_facts={"with_stack": True})
    assert found.confidence is Confidence.MEDIUM


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD1002", copies=None) == []


def test_a_recording_tells_how_many_threads_the_update_may_have_had() -> None:
    told = {"process.threads": "1", "process.cpus_of_host": "64"}
    settings = Settings(tuple(Setting("recorded", key, value) for key, value in told.items()))
    row = evidence(the_finding("DD1002", copies=ON_CPU, settings=settings), "torch threads of a rank at its start")
    assert row.value == 1
    assert "64 CPUs" in row.source


@pytest.mark.parametrize(("pin", "shown"), [("false", True), ("true", False)])
def test_offloaded_state_that_is_not_pinned_stands_beside_it(pin: str, shown: bool) -> None:
    key = "zero_optimization.offload_optimizer"
    told = Settings((Setting("ds_config", f"{key}.device", "cpu"), Setting("ds_config", f"{key}.pin_memory", pin)))
    found = the_finding("DD1002", copies=ON_CPU, settings=told)
    assert ("offload_optimizer.pin_memory" in {row.label for row in found.evidence}) == shown
    assert ("pin_memory" in found.fix[0]) == shown
