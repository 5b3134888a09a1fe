"""Which steps there are, when each rank worked on them, and which stand for the run."""

from __future__ import annotations

import polars as pl
import pytest

from ddiag.analysis.steps import StepWindows, find_steps
from tests.builders import RunBuilder, ns


def run_of_steps(*lengths_ms: float, rank: int = 0, first: int = 5, builder: RunBuilder | None = None) -> RunBuilder:
    """Back-to-back ProfilerSteps, each launching ten kernels early in the step."""
    builder = (builder or RunBuilder()).rank(rank)
    at = 0.0
    for number, length in enumerate(lengths_ms, first):
        builder.step(number, at, length - 0.05)
        for k in range(10):
            builder.launch_kernel("gemm", at + 1 + k * 0.1, at + 2 + k, 1)
        at += length
    return builder


def window(windows: StepWindows, step: int, rank: int = 0) -> tuple[float, float]:
    """Start and end of a step in ms after the start of the capture."""
    row = windows.table.filter((pl.col("rank") == rank) & (pl.col("step") == step)).row(0, named=True)
    return (row["start_ns"] - ns(0)) / 1e6, (row["end_ns"] - ns(0)) / 1e6


def steady(windows: StepWindows, rank: int = 0) -> list[int]:
    return windows.steady.filter(pl.col("rank") == rank)["step"].to_list()


def test_annotated_steps_touch_so_that_nothing_between_them_is_lost() -> None:
    windows = find_steps(run_of_steps(100, 100, 100, 100).build())
    assert (windows.source, windows.note, windows.excluded) == ("annotation", "", ())
    assert [window(windows, step) for step in (5, 6, 7)] == [(0, 100), (100, 200), (200, 300)]
    assert window(windows, 8) == (300, 399.95)


def test_the_device_copies_of_profiler_steps_are_not_steps() -> None:
    builder = run_of_steps(100, 100, 100)
    for number, at in ((5, 30), (6, 130), (7, 230)):
        builder.op(f"ProfilerStep#{number}", at, 2, kind="gpu_annotation", tid=7)
    assert find_steps(builder.build()).table.height == 3


def test_a_lagging_device_gives_each_step_the_work_it_launched() -> None:
    builder = RunBuilder()
    for k in range(4):
        builder.step(k, 10 * k, 10)
        builder.launch_kernel("gemm", 10 * k + 1, 40 + 20 * k, 20)
    windows = find_steps(builder.build())
    assert [window(windows, k) for k in range(1, 4)] == [(60, 80), (80, 100), (100, 120)]
    hosts = windows.table["host_start_ns"].to_list()
    assert hosts == [ns(0), ns(10), ns(20), ns(30)]


def test_work_launched_before_recording_began_belongs_to_no_step() -> None:
    builder = RunBuilder().capture(0, 120)
    for k in range(3):
        builder.kernel("gemm", 10 * k, 10)
    for k in range(3):
        builder.step(k, 10 * k, 10)
        builder.launch_kernel("gemm", 10 * k + 1, 30 + 20 * k, 20)
    assert window(find_steps(builder.build()), 0) == (30, 50)


def test_one_kernel_that_spans_all_steps_does_not_hide_them() -> None:
    builder = run_of_steps(100, 100, 100, 100).launch_kernel("persistent", -1, 0, 1000, stream=99)
    assert window(find_steps(builder.build()), 6) == (100, 200)


def test_the_last_step_lasts_until_the_work_it_launched_has_ended() -> None:
    builder = run_of_steps(100, 100, 100).launch_kernel("tail", 299, 299.5, 30)
    assert window(find_steps(builder.build()), 7) == (200, 329.5)


def test_a_slow_first_step_is_left_out_as_warm_up_and_said_so() -> None:
    windows = find_steps(run_of_steps(400, 100, 102, 98, 100).build())
    assert steady(windows) == [6, 7, 8, 9]
    assert (windows.excluded, windows.warm_up) == ((5,), (5,))
    assert "step 5 left out as warm-up" in windows.note


def test_a_moderately_slow_first_step_stays_unless_set_up_explains_it() -> None:
    plain = run_of_steps(130, 100, 100, 100)
    assert steady(find_steps(plain.build())) == [5, 6, 7, 8]
    allocating = run_of_steps(130, 100, 100, 100).api("cudaMalloc", 40, 25, kind="alloc")
    assert steady(find_steps(allocating.build())) == [6, 7, 8]


def test_a_slow_step_in_the_middle_is_not_warm_up() -> None:
    assert find_steps(run_of_steps(100, 100, 400, 100, 100).build()).excluded == ()


def test_one_late_rank_does_not_turn_its_first_step_into_warm_up() -> None:
    builder = RunBuilder()
    for rank in range(4):
        run_of_steps(*((400 if rank == 3 else 100), 100, 100, 100), rank=rank, builder=builder)
    assert find_steps(builder.build()).excluded == ()


def test_a_last_step_that_was_cut_off_is_left_out() -> None:
    builder = run_of_steps(100, 100, 100, 100).step(9, 400, 20).launch_kernel("gemm", 401, 402, 1)
    windows = find_steps(builder.build())
    assert windows.excluded == (9,)
    assert windows.warm_up == ()
    assert "cut off" in windows.note


def test_two_steps_are_both_kept_with_a_note() -> None:
    windows = find_steps(run_of_steps(400, 100).build())
    assert steady(windows) == [5, 6]
    assert "only 2 steps" in windows.note


def test_each_profiler_cycle_has_its_own_warm_up() -> None:
    builder = run_of_steps(300, 100, 100, 100).capture(0, 600).capture(9000, 600)
    for number, (at, length) in enumerate(((9000, 300), (9300, 100), (9400, 100), (9500, 100)), 50):
        builder.step(number, at, length - 0.05)
        for k in range(10):
            builder.launch_kernel("gemm", at + 1 + k * 0.1, at + 2 + k, 1)
    windows = find_steps(builder.build())
    assert windows.excluded == (5, 50)
    assert window(windows, 8)[1] == pytest.approx(599.95)


def test_ranks_that_number_steps_differently_are_compared_in_order() -> None:
    builder = run_of_steps(100, 100, 100, first=10)
    run_of_steps(100, 100, 100, first=110, rank=1, builder=builder)
    windows = find_steps(builder.build())
    assert steady(windows, 0) == steady(windows, 1) == [0, 1, 2]
    assert "order of time" in windows.note


def test_steps_that_only_one_rank_has_are_not_compared() -> None:
    builder = RunBuilder()
    for rank in range(3):
        run_of_steps(*[100.0] * (5 if rank == 0 else 4), rank=rank, builder=builder)
    windows = find_steps(builder.build())
    assert windows.excluded == (9,)


def unmarked(marks: str, *, count: int = 5, length_ms: float = 50) -> RunBuilder:
    """A run without ProfilerStep, whose only sign of a step is *marks*."""
    builder = RunBuilder().capture(0, count * length_ms)
    for k in range(count):
        at = k * length_ms
        builder.op("aten::mm", at + 1, 1).op("autograd::engine::evaluate_function: MmBackward0", at + 20, 1)
        for n, name in enumerate(("gemm", "norm", "gemm", "softmax", "adam")):
            builder.launch_kernel(name, at + 2 + n, at + 3 + 5 * n, 5)
        if marks:
            builder.annotation(marks, at + length_ms - 2, 1)
    return builder


@pytest.mark.parametrize(
    ("marks", "basis"),
    [
        ("Optimizer.step#AdamW.step", "the optimizer's step"),
        ("Optimizer.zero_grad#SGD.zero_grad", "zero_grad"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "waits for the next batch"),
        ("", "the repeating sequence of kernels"),
    ],
)
def test_steps_without_annotations_are_inferred_and_the_note_says_from_what(marks: str, basis: str) -> None:
    windows = find_steps(unmarked(marks).build())
    assert windows.source == "inferred"
    assert basis in windows.note
    lengths = (windows.table["host_end_ns"] - windows.table["host_start_ns"]) / 1e6
    assert lengths.median() == pytest.approx(50, abs=0.5)
    assert windows.table.height >= 4


def test_gradient_accumulation_counts_as_one_step_per_update() -> None:
    builder = RunBuilder().capture(0, 400)
    for k in range(16):
        builder.loader(25 * k, 1).launch_kernel("gemm", 25 * k + 2, 25 * k + 3, 15)
        if k % 4 == 3:
            builder.annotation("Optimizer.step#AdamW.step", 25 * k + 20, 4)
    windows = find_steps(builder.build())
    assert "optimizer" in windows.note
    assert [round(ms) for ms in (windows.table["end_ns"] - windows.table["start_ns"]) / 1e6] == [99, 100, 100, 100]


def test_two_optimizers_per_batch_do_not_halve_the_step() -> None:
    builder = RunBuilder().capture(0, 400)
    for k in range(4):
        builder.loader(100 * k + 1, 1).launch_kernel("gemm", 100 * k + 2, 100 * k + 3, 90)
        builder.annotation("Optimizer.step#Adam.step", 100 * k + 50, 4).annotation(
            "Optimizer.step#Adam.step", 100 * k + 90, 4
        )
    windows = find_steps(builder.build())
    assert (windows.table["end_ns"] - windows.table["start_ns"]).median() == pytest.approx(100e6)


def test_repeated_layers_of_a_single_forward_pass_are_no_steps() -> None:
    builder = RunBuilder().op("aten::mm", 0, 100)
    for layer in range(24):
        for n, name in enumerate(("norm", "qkv", "attention", "mlp")):
            builder.launch_kernel(name, layer, 1 + layer * 4 + n, 1)
    windows = find_steps(builder.build())
    assert windows.source == "window"
    assert windows.table.height == 1


def test_own_annotations_mark_steps() -> None:
    builder = RunBuilder()
    for k in range(4):
        builder.annotation(f"train_step {k}", 20 * k, 20).launch_kernel("gemm", 20 * k, 20 * k + 1, 10)
    windows = find_steps(builder.build())
    assert (windows.source, windows.table.height) == ("annotation", 4)


def test_own_annotations_of_micro_batches_give_way_to_the_optimizer() -> None:
    builder = RunBuilder().capture(0, 400)
    for k in range(16):
        builder.annotation("training_step", 25 * k, 24).launch_kernel("gemm", 25 * k + 2, 25 * k + 3, 15)
        if k % 4 == 3:
            builder.annotation("Optimizer.step#AdamW.step", 25 * k + 20, 4)
    windows = find_steps(builder.build())
    assert (windows.source, windows.table.height) == ("inferred", 4)


def test_tensorflow_steps_come_from_the_steps_table() -> None:
    run = run_of_steps(100, 100, 100).build()
    tables = {name: frame for name, frame in run.tables.items() if name != "ops"}
    windows = find_steps(type(run)(tables, run.coverage))
    assert (windows.source, windows.table["step"].to_list()) == ("annotation", [5, 6, 7])


def test_a_run_without_anything_has_no_steps() -> None:
    empty = RunBuilder().build()
    windows = find_steps(empty)
    assert windows.table.is_empty()
    assert windows.steady.is_empty()
