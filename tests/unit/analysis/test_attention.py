"""Fused or spelled-out attention, and softmaxes that are no attention at all."""

from __future__ import annotations

import pytest

from ddiag.analysis.attention import attention
from ddiag.analysis.steps import find_steps
from ddiag.model.signals import Attention
from tests.builders import RunBuilder

FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>, true>(x)"
GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)"


def attention_of(run: RunBuilder) -> Attention | None:
    built = run.build()
    return attention(built, find_steps(built), None)


def spelled_out(run: RunBuilder, at: float, *, dims: str | None = None, softmax: str = "aten::softmax") -> RunBuilder:
    """bmm (4 ms), softmax (3 ms), bmm (5 ms): 12 ms of kernels launched within 9 ms."""
    run.op("aten::bmm", at, 1, sequence=10, fwd_tid=0).launch_kernel(GEMM, at + 0.5, at + 1, 4)
    run.op("aten::div", at + 1.5, 1, sequence=11, fwd_tid=0)
    run.op(softmax, at + 3, 1, sequence=12, fwd_tid=0, dims=dims).op("aten::_softmax", at + 3.2, 0.5)
    run.launch_kernel(SOFTMAX, at + 3.5, at + 5, 3)
    return run.op("aten::bmm", at + 8, 1, sequence=13, fwd_tid=0).launch_kernel(GEMM, at + 8.5, at + 9, 5)


def test_a_flash_kernel_is_fused() -> None:
    found = attention_of(RunBuilder().step(0, 0, 100).launch_kernel(FLASH, 0, 1, 20))
    assert found == Attention(fused_ms=20, unfused_ms=0, unfused_share=0, evidence=found.evidence, calls_per_step=1)  # type: ignore[union-attr]
    assert "flash_fwd_kernel" in found.evidence  # type: ignore[union-attr]


def test_pytorchs_fallback_is_unfused_whatever_it_launches() -> None:
    run = RunBuilder().step(0, 0, 100).op("aten::_scaled_dot_product_attention_math", 0, 10)
    run.launch_kernel(GEMM, 1, 1, 4).launch_kernel(SOFTMAX, 2, 5, 4).launch_kernel(GEMM, 20, 30, 50)
    found = attention_of(run)
    assert found is not None
    assert found.unfused_ms == pytest.approx(8)
    assert found.unfused_share == pytest.approx(0.08)
    assert found.evidence == "aten::_scaled_dot_product_attention_math"


def test_matmul_softmax_matmul_is_unfused_attention() -> None:
    found = attention_of(spelled_out(RunBuilder().step(0, 0, 100), 0))
    assert found is not None
    assert found.unfused_ms == pytest.approx(12)
    assert found.calls_per_step == 1
    assert found.evidence == "aten::bmm, aten::softmax and aten::bmm in a row"


def test_its_backward_counts_by_sequence_number() -> None:
    run = spelled_out(RunBuilder().step(0, 0, 100), 0)
    for start, sequence, name in ((40, 13, "BmmBackward0"), (50, 12, "SoftmaxBackward0"), (60, 99, "AddmmBackward0")):
        run.op(f"autograd::engine::evaluate_function: {name}", start, 5, tid=2, sequence=sequence, fwd_tid=1)
        run.launch_kernel(GEMM, start + 1, start + 2, 6, tid=2)
    found = attention_of(run)
    assert found is not None
    assert found.unfused_ms == pytest.approx(12 + 2 * 6), "the projection's backward is not attention"


def test_a_classifiers_softmax_is_no_attention() -> None:
    run = RunBuilder().step(0, 0, 100).op("aten::bmm", 0, 1).op("aten::addmm", 2, 1).op("aten::softmax", 4, 1)
    run.op("aten::bmm", 6, 1).launch_kernel(GEMM, 0.5, 1, 4).launch_kernel(SOFTMAX, 4.5, 6, 4)
    assert attention_of(run) is None


def test_a_router_before_batched_experts_is_no_attention() -> None:
    run = RunBuilder().step(0, 0, 100).op("aten::linear", 0, 1).op("aten::softmax", 2, 1).op("aten::topk", 4, 1)
    run.op("aten::bmm", 6, 1).op("aten::bmm", 8, 1).launch_kernel(GEMM, 6.5, 7, 4)
    assert attention_of(run) is None


@pytest.mark.parametrize("softmax", ["aten::log_softmax", "aten::_softmax_backward_data"])
def test_other_softmaxes_are_no_attention(softmax: str) -> None:
    run = RunBuilder().step(0, 0, 100).op("aten::bmm", 0, 1).op(softmax, 2, 1).op("aten::bmm", 4, 1)
    assert attention_of(run.launch_kernel(GEMM, 0.5, 1, 4)) is None


def test_a_softmax_over_a_matrix_is_no_attention() -> None:
    run = RunBuilder().step(0, 0, 100)
    assert attention_of(spelled_out(run, 0, dims="[[8, 10], [], []]")) is None
    assert attention_of(spelled_out(RunBuilder().step(0, 0, 100), 0, dims="[[8, 4, 16, 16], [], []]")) is not None


def test_matmuls_far_from_the_softmax_are_not_its_own() -> None:
    run = RunBuilder().step(0, 0, 100).op("aten::bmm", 0, 0.1).launch_kernel(GEMM, 0.05, 1, 4)
    for nth in range(100):
        run.op("aten::add", 1 + 0.1 * nth, 0.05)
    run.op("aten::softmax", 20, 1).op("aten::bmm", 22, 1)
    assert attention_of(run) is None


def test_two_steps_share_the_cost() -> None:
    run = spelled_out(RunBuilder().step(0, 0, 50).step(1, 50, 50), 0)
    found = attention_of(run)
    assert found is not None
    assert found.unfused_ms == pytest.approx(6)
    assert found.calls_per_step == 0.5


def test_host_only_attention_is_timed_on_the_host() -> None:
    run = RunBuilder(device_kind="cpu").step(0, 0, 100)
    run.op("aten::_scaled_dot_product_flash_attention_for_cpu", 0, 8)
    found = attention_of(run)
    assert found is not None
    assert found.fused_ms == pytest.approx(8)
    assert found.unfused_ms == 0
