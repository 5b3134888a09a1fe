import pytest

from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding

HEAVY = {"gemm": 90.0, "elementwise": 80.0, "norm": 10.0}


def test_fires_with_the_share_and_half_of_it_as_gain() -> None:
    found = the_finding("DD304", kernel_mix={"ms": HEAVY})
    assert "80.0 ms per step (44% of kernel time)" in found.title
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.MEDIUM
    assert found.cost.ms_per_step == pytest.approx(40.0)
    assert evidence(found, "element-wise kernels").value == 80.0
    assert "torch.compile" in found.fix[0]


def test_kernels_that_are_fused_already_do_not_count() -> None:
    assert findings("DD304", kernel_mix={"ms": HEAVY, "fused_elementwise_share": 0.2}) == []
    assert len(findings("DD304", kernel_mix={"ms": HEAVY, "fused_elementwise_share": 0.1})) == 1


def test_an_eager_transformer_is_quiet() -> None:
    assert findings("DD304", kernel_mix={"ms": {"gemm": 130.0, "elementwise": 45.0}}) == []


def test_a_large_share_of_little_compute_is_quiet() -> None:
    assert findings("DD304", kernel_mix={"ms": {"gemm": 10.0, "elementwise": 12.0}}) == []


def test_a_mix_without_elementwise_kernels_is_quiet() -> None:
    assert findings("DD304", kernel_mix={"ms": {"gemm": 150.0}}) == []


def test_operators_of_a_host_only_trace_are_no_kernels() -> None:
    assert findings("DD304", kernel_mix={"ms": HEAVY, "on_device": False}) == []
