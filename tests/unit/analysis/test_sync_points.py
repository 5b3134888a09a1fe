"""Blocking calls that let the device run dry."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.steps import find_steps
from ddiag.analysis.sync_points import sync_points
from ddiag.model.signals import SyncPoints
from tests.builders import RunBuilder


def signal(builder: RunBuilder) -> SyncPoints | None:
    run = builder.build()
    return sync_points(run, find_steps(run), activity(run))


def reading(
    op: str = "aten::item", *, relaunch_ms: float = 6, rank: int = 0, builder: RunBuilder | None = None
) -> RunBuilder:
    """Three 100 ms steps that read a value twice and launch the next kernel *relaunch_ms* later."""
    builder = (builder or RunBuilder()).rank(rank)
    for k in range(6):
        at = 50 * k
        if k % 2 == 0:
            builder.step(k // 2, at, 100)
        builder.launch_kernel("gemm", at, at + 0.01, 49.99 - relaunch_ms)
        builder.python("torch/_tensor.py(90): item", at + 5, 46 - relaunch_ms).python(
            "train.py(42): log_loss", at + 4, 47
        )
        builder.op(op, at + 5, 46 - relaunch_ms).op("aten::_local_scalar_dense", at + 6, 44.9 - relaunch_ms)
        builder.api("cudaMemcpyAsync", at + 7, 0.01, kind="copy")
        builder.api("cudaStreamSynchronize", at + 8, 42 - relaunch_ms)
    return builder


def test_operator_and_runtime_call_are_one_sync_point() -> None:
    found = signal(reading())
    assert found is not None
    assert found.table.select("rank", "op", "where").rows() == [(0, "aten::item", "train.py(42): log_loss")]
    row = found.table.row(0, named=True)
    assert row["count_per_step"] == pytest.approx(5 / 3)  # the last one of the capture is followed by nothing
    assert row["wait_ms"] == pytest.approx(36 * 5 / 3)
    assert found.stall_ms == row["stall_ms"] == pytest.approx(6.01 * 5 / 3)
    assert found.stall_share == pytest.approx(found.stall_ms / 100)
    assert found.count_per_step == row["count_per_step"]


def test_the_outermost_operator_is_named() -> None:
    builder = reading("aten::index")
    assert (found := signal(builder)) is not None
    assert found.table["op"].to_list() == ["aten::index"]


def test_a_call_outside_any_operator_goes_by_its_own_name() -> None:
    builder = RunBuilder()
    for k in range(4):
        builder.step(k, 100 * k, 100).launch_kernel("gemm", 100 * k, 100 * k + 0.01, 90)
        builder.api("cudaDeviceSynchronize", 100 * k + 1, 89.1)
    assert (found := signal(builder)) is not None
    assert found.table.select("op", "where").rows() == [("cudaDeviceSynchronize", "")]


def test_the_worst_rank_gives_the_figures() -> None:
    builder = reading(relaunch_ms=2)
    assert (found := signal(reading(relaunch_ms=20, rank=1, builder=builder))) is not None
    assert sorted(found.table["rank"]) == [0, 1]
    assert found.stall_ms == pytest.approx(20.01 * 5 / 3)


def test_a_read_that_finds_the_queue_full_again_at_once_is_no_sync_point() -> None:
    builder = RunBuilder()
    for k in range(4):
        builder.step(k, 100 * k, 100).launch_kernel("gemm", 100 * k - 20, 100 * k, 100)
        builder.op("aten::item", 100 * k + 10, 20).api("cudaEventSynchronize", 100 * k + 10, 20)
    assert (found := signal(builder)) is not None
    assert found.table.is_empty()
    assert (found.stall_ms, found.count_per_step) == (0, 0)


def test_blocking_calls_of_the_loader_are_not_the_users() -> None:
    builder = RunBuilder()
    for k in range(4):
        at = 100 * k
        builder.step(k, at, 100).launch_kernel("gemm", at, at + 0.01, 60)
        builder.loader(at + 1, 80).api("cudaStreamSynchronize", at + 2, 59)
    assert (found := signal(builder)) is not None
    assert found.table.is_empty()


def test_without_a_device_there_is_nothing_to_stall() -> None:
    assert signal(RunBuilder(device_kind="cpu").step(0, 0, 10).op("aten::item", 0, 1)) is None


def test_without_any_host_record_nothing_is_known() -> None:
    assert signal(RunBuilder().kernel("gemm", 0, 10).kernel("gemm", 20, 10)) is None
