"""Compute of a trace without a device: operators count whole, what brackets or awaits does not."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.intervals import total
from tests.builders import RunBuilder


def compute_ms(run: RunBuilder) -> float:
    return total(activity(run.build())[0].compute) / 1e6


def host() -> RunBuilder:
    return RunBuilder(device_kind="cpu").step(0, 0, 100)


def test_an_operator_counts_with_its_own_time_not_only_its_leaves() -> None:
    """aten::mm calls aten::empty for its result; the multiplication itself is its own time."""
    assert compute_ms(host().op("aten::mm", 0, 20).op("aten::empty", 1, 1)) == pytest.approx(20)


def test_spans_that_bracket_operators_may_wait() -> None:
    run = host().op("DistributedDataParallel.forward", 0, 90).op("SyncBatchNorm", 10, 60)
    run.op("aten::mul", 11, 4).op("c10d::allgather_", 20, 30).op("aten::mul", 60, 5)
    assert compute_ms(run) == pytest.approx(9)


def test_autograd_nodes_only_count_through_their_operators() -> None:
    run = host().op("autograd::engine::evaluate_function: MmBackward0", 0, 30).op("MmBackward0", 1, 28)
    assert compute_ms(run.op("aten::mm", 5, 10).op("aten::empty", 6, 1)) == pytest.approx(10)


def test_issuing_a_collective_is_not_compute_wherever_it_is_nested() -> None:
    run = host().op("my_lib::fused_allreduce_linear", 0, 20).op("c10d::allreduce_", 5, 10)
    assert compute_ms(run.op("record_param_comms", 6, 8)) == pytest.approx(10)


def test_waiting_for_input_is_not_compute() -> None:
    run = host().loader(0, 30).op("aten::stack", 5, 10).op("aten::mm", 40, 20)
    assert compute_ms(run) == pytest.approx(20)


def test_threads_that_compute_at_once_count_once() -> None:
    run = host().op("aten::mm", 0, 20).op("aten::mm", 10, 20, tid=2).op("c10d::allreduce_", 15, 10)
    assert compute_ms(run) == pytest.approx(30), "one thread issuing does not stop the other"
