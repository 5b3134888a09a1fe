"""Garbage collection, saving, logging, compilation and debugging modes."""

from __future__ import annotations

import polars as pl
import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.python_overhead import python_overhead
from ddiag.analysis.steps import find_steps
from ddiag.model.incident import CONFIG
from ddiag.model.run import Run
from ddiag.model.signals import PythonOverhead
from tests.builders import RunBuilder


def overhead(run: Run) -> PythonOverhead:
    found = python_overhead(run, find_steps(run), activity(run))
    assert found is not None
    return found


def healthy(rank: int = 0, builder: RunBuilder | None = None) -> RunBuilder:
    builder = (builder or RunBuilder()).rank(rank)
    for k in range(4):
        at = 100 * k
        builder.step(k, at, 100).op("aten::mm", at, 1).launch_kernel("gemm", at, at + 1, 98)
        builder.op("autograd::engine::evaluate_function: MmBackward0", at + 10, 5).op("aten::mm", at + 11, 1)
        builder.op("autograd::engine::evaluate_function: AddBackward0", at + 20, 5).op("aten::add", at + 21, 1)
    return builder


def test_a_healthy_run_has_no_overhead() -> None:
    assert overhead(healthy().build()) == PythonOverhead(
        gc_ms_per_step=0.0,
        gc_ranks=(),
        checkpoint_ms=0.0,
        logging_ms_per_step=0.0,
        compile_ms=0.0,
        anomaly_mode=False,
        find_unused_ms=None,
        dataloader_workers=None,
    )


@pytest.mark.parametrize("name", ["<built-in function collect>", "gc.collect", "Python GC"])
def test_garbage_collection_names_the_ranks_that_collect(name: str) -> None:
    builder = healthy()
    healthy(rank=1, builder=builder).python(name, 150, 40)
    found = overhead(builder.build())
    assert found.gc_ms_per_step == pytest.approx(10)
    assert found.gc_ranks == (1,)


def test_collections_on_another_thread_do_not_stop_training() -> None:
    assert overhead(healthy().python("<built-in function collect>", 150, 40, tid=99).build()).gc_ms_per_step == 0


def test_the_longest_save_of_a_step_counts_with_all_its_parts() -> None:
    builder = healthy().python("torch/serialization.py(944): save", 110, 20)
    builder.python("torch/serialization.py(944): save", 135, 15).python("train.py(7): save_checkpoint", 320, 30)
    assert overhead(builder.build()).checkpoint_ms == pytest.approx(35)


@pytest.mark.parametrize(
    "name",
    [
        "<built-in function print>",
        "wandb/sdk/wandb_run.py(388): log",
        "torch/utils/tensorboard/writer.py(358): add_scalar",
        "logging/__init__.py(1479): info",
    ],
)
def test_logging_is_counted_per_step(name: str) -> None:
    builder = healthy()
    for k in range(4):
        builder.python(name, 100 * k + 60, 8)
    assert overhead(builder.build()).logging_ms_per_step == pytest.approx(8)


def test_compilation_counts_in_steady_steps_only() -> None:
    warm = RunBuilder().op("_compile.compile_inner (dynamo_timed)", -500, 400).step(-1, -600, 600)
    warm.op("aten::mm", -600, 1)
    for n in range(5):
        warm.launch_kernel("gemm", -600 + n, -590 + n, 1)
    assert overhead(healthy(builder=warm).build()).compile_ms == 0
    again = healthy().op("_compile.compile_inner (dynamo_timed)", 210, 40).op("entire_frame_compile", 209, 42)
    assert overhead(again.build()).compile_ms == pytest.approx(42)


def test_a_check_of_every_gradient_is_anomaly_mode() -> None:
    builder = healthy()
    for k in range(4):
        for at in (13, 23):
            builder.op("aten::isnan", 100 * k + at, 0.5)
    assert overhead(builder.build()).anomaly_mode


def test_a_check_of_the_loss_is_not_anomaly_mode() -> None:
    builder = healthy()
    for k in range(4):
        builder.op("aten::isnan", 100 * k + 40, 0.5)
    assert not overhead(builder.build()).anomaly_mode


def test_the_frame_of_anomaly_mode_tells_too() -> None:
    assert overhead(healthy().python("torch/autograd/anomaly_mode.py(88): __enter__", 1, 0.1).build()).anomaly_mode


def test_the_compiler_switches_anomaly_mode_on_for_itself_while_it_traces() -> None:
    builder = healthy().op("create_aot_dispatcher_function", 210, 40)
    found = overhead(builder.python("torch/autograd/anomaly_mode.py(88): __enter__", 220, 0.1).build())
    assert not found.anomaly_mode


def test_ddps_search_for_unused_parameters_is_measured_where_seen() -> None:
    builder = healthy()
    for k in range(4):
        builder.op("torch.distributed.ddp.reducer::search_unused_parameters", 100 * k + 5, 3)
    assert overhead(builder.build()).find_unused_ms == pytest.approx(3)


def test_workers_come_from_the_configuration_else_from_the_loaders_class() -> None:
    assert overhead(healthy().loader(50, 1, workers=0).build()).dataloader_workers == 0
    run = healthy().loader(50, 1, workers=2).build()
    assert overhead(run).dataloader_workers is None
    config = pl.DataFrame([{"key": "data.num_workers", "value": "6", "source": "config.yaml"}], schema=CONFIG.schema)
    assert overhead(Run({**run.tables, "config": config}, run.coverage)).dataloader_workers == 6


def test_without_host_spans_nothing_is_known() -> None:
    run = RunBuilder().kernel("gemm", 0, 10).build()
    assert python_overhead(run, find_steps(run), activity(run)) is None
