import pytest

from ddiag.rulekit import Severity
from tests.rules.checking import check, evidence, findings, the_finding

UNFUSED = {"unfused_ms": 40.0, "fused_ms": 0.0, "evidence": "aten::softmax between aten::bmm"}


def test_fires_with_the_time_and_a_gain_of_half() -> None:
    found = the_finding("DD302", attention=UNFUSED)
    assert "40.0 ms per step (20% of the step)" in found.title
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == pytest.approx(20.0)
    assert evidence(found, "unfused attention").value == 40.0
    assert "scaled_dot_product_attention" in found.fix[0]


def test_fused_attention_is_quiet_however_long() -> None:
    assert findings("DD302", attention={"fused_ms": 120.0}) == []


def test_a_little_unfused_attention_is_quiet() -> None:
    assert findings("DD302", attention={**UNFUSED, "unfused_ms": 9.0}) == []


def test_between_five_and_ten_per_cent_is_information() -> None:
    assert the_finding("DD302", attention={**UNFUSED, "unfused_ms": 15.0}).severity is Severity.INFO


def test_old_devices_are_not_promised_flash_kernels() -> None:
    found = the_finding("DD302", attention=UNFUSED, job_facts={"device_names": ("Tesla V100-SXM2-32GB",)})
    assert not any("flash_attention_2" in step for step in found.fix)
    assert any("memory-efficient" in step for step in found.fix)


def test_fp32_inputs_are_named_as_the_obstacle() -> None:
    found = the_finding("DD302", attention=UNFUSED, precision={"ms": {"fp32": 130.0}})
    assert any("16-bit" in step for step in found.fix)
    assert not any("16-bit" in step for step in the_finding("DD302", attention=UNFUSED, precision=None).fix)


def test_a_host_only_job_is_not_judged() -> None:
    assert findings("DD302", job_facts={"device_kind": "cpu"}, attention=UNFUSED) == []


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD302", attention=None) == []
