import pytest

from ddiag.rulekit import Abstain, Severity
from tests.rules.checking import check, evidence, findings, the_finding

FP32 = {"ms": {"fp32": 120.0, "tf32": 10.0}}


def test_fires_with_share_time_and_the_low_end_of_the_gain() -> None:
    found = the_finding("DD1101", precision=FP32)
    assert "92% of matmul time runs in fp32 on NVIDIA H100 80GB HBM3: 120.0 ms per step" in found.title
    assert found.cost.ms_per_step == pytest.approx(60.0)
    assert found.severity is Severity.WARNING
    assert evidence(found, "example").value == "gemm_fp32"
    assert "bfloat16" in found.fix[0]
    assert "set_float32_matmul_precision" in found.fix[1]


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti"])
def test_devices_without_tf32_and_bf16_are_told_fp16(name: str) -> None:
    found = the_finding("DD1101", precision=FP32, job_facts={"device_names": (name,)})
    assert "float16" in found.fix[0]
    assert not any("bfloat16" in step or "tf32" in step for step in found.fix)


@pytest.mark.parametrize(("bf16", "first"), [(False, "float16"), (True, "bfloat16")])
def test_what_the_evidence_says_of_the_device_beats_its_name(bf16: bool, first: str) -> None:
    known = {**FP32, "bf16": bf16, "tf32": bf16}
    assert f"torch.{first}" in the_finding("DD1101", precision=known).fix[0]


def test_amd_devices_are_not_told_tf32() -> None:
    amd = {"device_kind": "rocm", "device_names": ("AMD Instinct MI300X",)}
    assert not any("TF32" in step for step in the_finding("DD1101", precision=FP32, job_facts=amd).fix)


def test_tf32_and_bf16_are_quiet() -> None:
    assert findings("DD1101", precision={"ms": {"tf32": 130.0}}) == []


def test_a_minority_in_fp32_is_deliberate() -> None:
    assert findings("DD1101", precision={"ms": {"fp32": 50.0, "bf16": 80.0}}) == []


def test_matmuls_that_do_not_matter_to_the_step_are_quiet() -> None:
    assert findings("DD1101", precision={"ms": {"fp32": 9.0}}) == []


def test_devices_without_tensor_cores_are_quiet() -> None:
    assert findings("DD1101", precision={**FP32, "tensor_cores": False}) == []


def test_abstains_when_the_device_is_unknown() -> None:
    (said,) = check("DD1101", precision={**FP32, "tensor_cores": None})
    assert isinstance(said, Abstain)


def test_abstains_when_kernel_names_do_not_tell_the_format() -> None:
    (said,) = check("DD1101", precision={"ms": {"unknown": 120.0, "fp32": 20.0}})
    assert isinstance(said, Abstain)
    assert "86%" in said.reason


def test_a_third_of_unknown_formats_does_not_hide_the_rest() -> None:
    assert len(findings("DD1101", precision={"ms": {"unknown": 40.0, "fp32": 90.0}})) == 1


def test_unknown_formats_of_little_time_are_not_worth_an_abstention() -> None:
    assert check("DD1101", precision={"ms": {"unknown": 9.0}}) == []


def test_a_host_only_job_is_not_judged() -> None:
    assert check("DD1101", job_facts={"device_kind": "cpu"}, precision=FP32) == []


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD1101", precision=None) == []
