"""How the update is implemented, what it costs, accumulation, and steps that the gradient scaler skipped."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.optimizer_step import optimizer_step
from ddiag.analysis.steps import find_steps
from ddiag.model.signals import OptimizerStep
from tests.builders import RunBuilder

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOp<float>>(x)"
FUSED = "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>(x)"
CHECK = "aten::_amp_foreach_non_finite_check_and_unscale_"


def optimizer_of(run: RunBuilder) -> OptimizerStep | None:
    built = run.build()
    return optimizer_step(built, find_steps(built), activity(built))


def training(*, steps: int = 4, update_every: int = 1, name: str = "AdamW") -> RunBuilder:
    """Steps of 100 ms with 40 ms of forward and backward; the optimizer's span is at 80-90 ms."""
    run = RunBuilder()
    for step in range(steps):
        at = 100.0 * step
        run.step(step, at, 100).launch_kernel("ampere_sgemm_128x64_nn", at, at + 1, 40)
        if (step + 1) % update_every == 0:
            run.annotation(f"Optimizer.step#{name}.step", at + 80, 10)
    return run


def with_update(run: RunBuilder, kernel: str, count: int, *, steps: int = 4) -> RunBuilder:
    """*count* kernels of 0.5 ms launched from inside each optimizer span, running after it."""
    for step in range(steps):
        for nth in range(count):
            run.launch_kernel(kernel, 100 * step + 81 + 0.1 * nth, 100 * step + 82 + 0.6 * nth, 0.5)
    return run


@pytest.mark.parametrize(("kernel", "implementation"), [(ADD, "for_loop"), (FOREACH, "foreach"), (FUSED, "fused")])
def test_the_kernels_show_the_implementation(kernel: str, implementation: str) -> None:
    found = optimizer_of(with_update(training(), kernel, 10))
    assert found is not None
    assert found.implementation == implementation
    assert found.name == "AdamW"
    assert found.kernels_per_step == 10
    assert found.ms_per_step == pytest.approx(5.0)
    assert found.host_ms_per_step == pytest.approx(10.0)
    assert found.share == pytest.approx(0.05)
    assert found.steps_per_optimizer_step == 1.0
    assert found.skipped_steps == 0


def test_kernels_before_the_optimizer_are_not_the_update() -> None:
    run = with_update(training(), FUSED, 1)
    for step in range(4):
        run.launch_kernel(ADD, 100 * step + 79, 100 * step + 95, 3)
    found = optimizer_of(run)
    assert found is not None
    assert found.implementation == "fused"
    assert found.kernels_per_step == 1


def test_gradients_zeroed_one_by_one_are_counted() -> None:
    run = with_update(training(), FUSED, 1)
    for step in range(4):
        run.annotation("Optimizer.zero_grad#AdamW.zero_grad", 100 * step + 2, 2)
        for nth in range(7):
            run.launch_kernel(ADD, 100 * step + 2.1 + 0.1 * nth, 100 * step + 50, 0.01)
    found = optimizer_of(run)
    assert found is not None
    assert found.zero_grad_kernels_per_step == 7


def test_an_update_every_other_step_is_accumulation() -> None:
    found = optimizer_of(training(update_every=2).launch_kernel(FUSED, 181, 182, 2))
    assert found is not None
    assert found.steps_per_optimizer_step == 2.0
    assert found.ms_per_step == pytest.approx(0.5)


def test_one_update_in_two_steps_does_not_make_accumulation() -> None:
    """The capture may have begun or ended between the others."""
    found = optimizer_of(training(steps=2, update_every=2).launch_kernel(FUSED, 181, 182, 2))
    assert found is not None
    assert found.steps_per_optimizer_step == 1.0


def test_a_step_with_a_check_but_no_update_was_skipped() -> None:
    run = RunBuilder()
    for step in range(6):
        at = 100.0 * step
        run.step(step, at, 100).launch_kernel("volta_h884gemm_128x128_ldg8_nn", at, at + 1, 40)
        run.op(CHECK, at + 75, 1)
        if step not in (2, 4):
            run.annotation("Optimizer.step#SGD.step", at + 80, 10).launch_kernel(FOREACH, at + 81, at + 82, 1)
    found = optimizer_of(run)
    assert found is not None
    assert found.skipped_steps == 2
    assert found.steps_per_optimizer_step == 1.0, "a skipped step is no accumulation"
    assert found.scaler_checks_per_step == 1.0


def test_accumulation_without_a_check_is_no_skipped_step() -> None:
    run = with_update(training(update_every=2), FUSED, 1)
    for step in (1, 3):
        run.op(CHECK, 100 * step + 75, 1)
    found = optimizer_of(run)
    assert found is not None
    assert found.skipped_steps == 0
    assert found.scaler_checks_per_step == 0.5


def test_operators_without_kernels_mean_an_update_on_the_cpu() -> None:
    run = training()
    for step in range(4):
        run.op("aten::_foreach_add_", 100 * step + 81, 8)
    found = optimizer_of(run)
    assert found is not None
    assert found.implementation == "cpu"
    assert found.ms_per_step == pytest.approx(10.0), "it runs on the host"


def test_cpu_adam_is_one_although_it_copies_from_inside() -> None:
    found = optimizer_of(with_update(training(name="DeepSpeedCPUAdam"), ADD, 1))
    assert found is not None
    assert found.implementation == "cpu"


def test_an_empty_span_is_unknown_not_cpu() -> None:
    found = optimizer_of(training())
    assert found is not None
    assert found.implementation == "unknown"
    assert found.kernels_per_step == 0


def test_without_spans_the_functor_names_the_optimizer() -> None:
    run = RunBuilder().step(0, 0, 100).launch_kernel("ampere_sgemm_128x64_nn", 0, 1, 40)
    found = optimizer_of(run.launch_kernel(FUSED, 50, 51, 4))
    assert found is not None
    assert (found.name, found.implementation, found.ms_per_step) == ("Adam", "fused", 4.0)


@pytest.mark.parametrize(
    ("operator", "implementation"),
    [("aten::_fused_adamw_", "fused"), ("aten::_foreach_add_", "foreach"), ("aten::add_", "for_loop")],
)
def test_without_a_device_the_operators_tell(operator: str, implementation: str) -> None:
    run = RunBuilder(device_kind="cpu").step(0, 0, 100).op("aten::mm", 1, 50)
    run.annotation("Optimizer.step#AdamW.step", 80, 10).op(operator, 81, 8)
    found = optimizer_of(run)
    assert found is not None
    assert found.implementation == implementation
    assert found.ms_per_step == pytest.approx(10.0)


def test_inference_has_no_optimizer() -> None:
    assert optimizer_of(RunBuilder().step(0, 0, 100).launch_kernel(ADD, 0, 1, 5)) is None


def updating(*, forward_ms: float) -> RunBuilder:
    """Steps whose update at 80-90 ms launches ten kernels, 0.8 ms apart, of 0.2 ms each."""
    run = RunBuilder()
    for step in range(4):
        at = 100.0 * step
        run.step(step, at, 100).launch_kernel("ampere_sgemm_128x64_nn", at, at + 1, forward_ms)
        run.annotation("Optimizer.step#AdamW.step", at + 80, 10)
        begin = max(forward_ms + 1, 81)
        for nth in range(10):
            launched = at + 81 + 0.8 * nth
            run.launch_kernel(ADD, launched, max(launched + 0.1, at + begin + 0.2 * nth), 0.2)
    return run


def test_a_device_that_runs_dry_inside_the_update_is_starved_by_it() -> None:
    found = optimizer_of(updating(forward_ms=40))
    assert found is not None
    assert found.starved_ms == pytest.approx(10 - 10 * 0.2)


def test_a_device_that_still_has_work_is_not_starved_however_long_the_host_takes() -> None:
    found = optimizer_of(updating(forward_ms=95))
    assert found is not None
    assert found.host_ms_per_step == pytest.approx(10.0)
    assert found.starved_ms == pytest.approx(0.0)


def test_without_a_device_nothing_is_known_of_starving() -> None:
    run = RunBuilder(device_kind="cpu")
    for step in range(4):
        run.step(step, 100 * step, 100).op("aten::mm", 100 * step, 40)
        run.annotation("Optimizer.step#SGD.step", 100 * step + 80, 10).op("aten::add_", 100 * step + 81, 8)
    found = optimizer_of(run)
    assert found is not None
    assert found.starved_ms is None
