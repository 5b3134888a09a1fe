"""Forward done again inside backward, and backward passes that only look like it."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.memory import memory
from ddiag.analysis.recompute import recompute
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.signals import Recompute
from tests.builders import RunBuilder
from tests.shared import shared_data

GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn"
AUTOGRAD = 2
"""The thread that runs backward."""


def recompute_of(run: Run) -> Recompute | None:
    windows = find_steps(run)
    return recompute(run, windows, activity(run), memory(run, windows))


def node(run: RunBuilder, name: str, at: float, dur: float, sequence: int) -> RunBuilder:
    span = {"tid": AUTOGRAD, "sequence": sequence, "fwd_tid": 1}
    return run.op(f"autograd::engine::evaluate_function: {name}", at, dur, **span).op(name, at, dur, **span)


def step_with(name: str, operators: tuple[str, ...]) -> RunBuilder:
    """A 100 ms step; in backward (50-90 ms) a node with *operators* (4 ms of kernels each), then its own gradient."""
    run = RunBuilder().step(0, 0, 100)
    run.op("aten::linear", 5, 10, sequence=3, fwd_tid=0).launch_kernel(GEMM, 6, 7, 4)
    node(run, name, 50, 30, sequence=3)
    for nth, operator in enumerate(operators):
        run.op(operator, 51 + 5 * nth, 4, tid=AUTOGRAD, sequence=20 + nth, fwd_tid=0)
        run.op("aten::as_strided", 52 + 5 * nth, 1, tid=AUTOGRAD)
        run.launch_kernel(GEMM, 53 + 5 * nth, 54 + 5 * nth, 4, tid=AUTOGRAD)
    return run.op("aten::mm", 75, 2, tid=AUTOGRAD).launch_kernel(GEMM, 76, 77, 6, tid=AUTOGRAD)


def test_forward_operators_in_a_backward_node_are_recompute() -> None:
    found = recompute_of(step_with("ReluBackward0", ("aten::linear", "aten::add", "aten::layer_norm")).build())
    assert found is not None
    assert found.ms_per_step == pytest.approx(12.0)
    assert found.share == pytest.approx(0.12)
    assert "run inside backward" in found.detected_by


def test_a_reentrant_checkpoint_names_itself() -> None:
    run = step_with("CheckpointFunctionBackward", ("my_lib::fused_block",))
    node(run, "AddmmBackward0", 60, 5, sequence=21)
    run.op("aten::mm", 61, 2, tid=AUTOGRAD).launch_kernel(GEMM, 62, 63, 7, tid=AUTOGRAD)
    found = recompute_of(run.build())
    assert found is not None
    assert found.ms_per_step == pytest.approx(4.0), "the nested backward is no forward"
    assert found.detected_by.startswith("CheckpointFunctionBackward")


def test_plain_backward_is_no_recompute() -> None:
    assert recompute_of(step_with("AddmmBackward0", ()).build()) is None


def test_a_second_derivative_is_no_recompute() -> None:
    """Gradient penalties run backward with gradients on: new sequence numbers, but derivative formulas only."""
    assert recompute_of(step_with("SigmoidBackward0", ("aten::mm", "aten::mul", "aten::t")).build()) is None


def test_forward_in_the_forward_is_no_recompute() -> None:
    run = RunBuilder().step(0, 0, 100).op("aten::linear", 5, 10, sequence=3, fwd_tid=0).launch_kernel(GEMM, 6, 7, 4)
    assert recompute_of(run.build()) is None


def test_communication_in_recompute_is_not_its_cost() -> None:
    run = step_with("ReluBackward0", ("aten::linear",))
    run.collective("all_gather", 60, 20, enqueue_ms=52, tid=AUTOGRAD)
    found = recompute_of(run.build())
    assert found is not None
    assert found.ms_per_step == pytest.approx(4.0)


def test_without_a_device_the_host_time_counts() -> None:
    run = RunBuilder(device_kind="cpu").step(0, 0, 100)
    node(run, "ReluBackward0", 50, 30, sequence=3)
    run.op("aten::linear", 51, 8, tid=AUTOGRAD, sequence=20, fwd_tid=0)
    run.op("aten::addmm", 52, 6, tid=AUTOGRAD, sequence=20, fwd_tid=0)
    found = recompute_of(run.build())
    assert found is not None
    assert found.ms_per_step == pytest.approx(8.0)


def test_mi300_resnet_agrees_with_its_python_stacks() -> None:
    """591 kernels launched under torch/utils/checkpoint.py: recompute_fn take 4.122 ms in three steps."""
    from ddiag.ingest import load

    path = shared_data("AMD-AGI+TraceLens", "mi300", "resnet_act_checkpoint.json.gz")
    found = recompute_of(load([str(path)]))
    assert found is not None
    assert found.ms_per_step == pytest.approx(4.122223 / 3)
    assert "torch/utils/checkpoint.py" in found.detected_by


def test_a_trace_without_checkpointing_has_none() -> None:
    from ddiag.ingest import load

    path = shared_data("facebookresearch+HolisticTraceAnalysis", "trace_diff", "control", "control.json.gz")
    assert recompute_of(load([str(path)])) is None
