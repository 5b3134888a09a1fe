import pytest

from ddiag.rulekit import Severity
from tests.rules.checking import check, evidence, findings, the_finding

FOREACH = {"implementation": "foreach", "ms_per_step": 20.0, "kernels_per_step": 260.0}
FOR_LOOP = {"implementation": "for_loop", "ms_per_step": 20.0, "kernels_per_step": 4000.0, "host_ms_per_step": 60.0}


def test_fires_with_the_gain_that_memory_traffic_allows() -> None:
    found = the_finding("DD301", optimizer_step=FOREACH)
    assert "AdamW runs as foreach: 260 kernels and 20.0 ms" in found.title
    assert found.cost.ms_per_step == pytest.approx(13.0)
    assert evidence(found, "possible gain").value == 13.0
    assert found.severity is Severity.INFO
    assert found.fix[0].startswith("torch.optim.AdamW(…, fused=True)")


def test_a_for_loop_that_starves_the_device_costs_that_time_too() -> None:
    found = the_finding("DD301", optimizer_step={**FOR_LOOP, "starved_ms": 30.0})
    assert found.cost.ms_per_step == pytest.approx(13.0 + 30.0)
    assert found.severity is Severity.WARNING
    assert evidence(found, "device idle meanwhile").value == 30.0


def test_few_launches_are_not_blamed_for_a_device_that_runs_dry() -> None:
    found = the_finding("DD301", optimizer_step={**FOREACH, "starved_ms": 30.0})
    assert found.cost.ms_per_step == pytest.approx(13.0)


def test_host_time_while_the_device_has_work_costs_nothing() -> None:
    found = the_finding("DD301", optimizer_step={**FOR_LOOP, "starved_ms": 0.0}, step_budget={"host_ms": 50.0})
    assert found.cost.ms_per_step == pytest.approx(13.0)


@pytest.mark.parametrize("implementation", ["fused", "cpu", "unknown"])
def test_other_implementations_are_quiet(implementation: str) -> None:
    assert findings("DD301", optimizer_step={**FOREACH, "implementation": implementation}) == []


def test_an_update_that_is_cheap_anyway_is_quiet() -> None:
    assert findings("DD301", optimizer_step={**FOREACH, "ms_per_step": 8.0}) == []


def test_optimizers_without_fused_get_other_advice() -> None:
    found = the_finding("DD301", optimizer_step={**FOREACH, "name": "LAMB"})
    assert "FusedLamb" in found.fix[0]
    assert "fused=True" not in found.fix[0]


def test_optimizers_that_multiply_matrices_cannot_be_fused() -> None:
    assert findings("DD301", optimizer_step={**FOR_LOOP, "name": "Shampoo"}) == []


@pytest.mark.parametrize("name", ["", "MyOwnAdamW"])
def test_an_unknown_or_derived_name_is_judged(name: str) -> None:
    assert len(findings("DD301", optimizer_step={**FOREACH, "name": name})) == 1


def test_clearing_gradients_by_kernels_is_pointed_out() -> None:
    found = the_finding("DD301", optimizer_step={**FOREACH, "zero_grad_kernels_per_step": 148.0})
    assert "set_to_none=True): 148" in found.fix[-1]


def test_a_host_only_job_is_not_judged() -> None:
    assert findings("DD301", job_facts={"device_kind": "cpu"}, optimizer_step=FOREACH) == []


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD301", optimizer_step=None) == []


def test_nobody_is_told_to_train_with_another_optimizer() -> None:
    assert "adamw_torch_fused" in the_finding("DD301", optimizer_step=FOREACH).fix[0]
    sgd = the_finding("DD301", optimizer_step={**FOR_LOOP, "name": "SGD"})
    assert sgd.fix[0] == "torch.optim.SGD(…, fused=True)"
