"""Why a device was idle, and when it was busy."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.device_work import device_work
from ddiag.analysis.idle_causes import IdleCauses
from ddiag.analysis.intervals import total
from tests.builders import RunBuilder, ns


def causes(builder: RunBuilder) -> IdleCauses:
    found = activity(builder.build())[0].idle
    assert found is not None
    return found


def split_ms(found: IdleCauses) -> dict[str, float]:
    return {name: total(getattr(found, name)) / 1e6 for name in ("input", "sync", "host", "other")}


def healthy() -> RunBuilder:
    """100 ms of kernels, all launched ahead."""
    builder = RunBuilder().capture(0, 100)
    for k in range(10):
        builder.launch_kernel("gemm", 0.1 * k, 10 * k, 10)
    return builder


def test_a_device_that_never_waits_has_no_idle_time() -> None:
    assert split_ms(causes(healthy())) == {"input": 0, "sync": 0, "host": 0, "other": 0}


def test_streams_that_overlap_are_counted_once() -> None:
    builder = RunBuilder().kernel("gemm", 0, 10).kernel("gemm", 5, 10, stream=8)
    builder.collective("all_reduce", 8, 20).copy("h2d", 27, 5)
    act = activity(builder.build())[0]
    assert [total(part) / 1e6 for part in (act.compute, act.comm, act.copy, act.busy)] == [15, 20, 5, 32]
    assert act.on_device


def test_idle_time_in_the_loader_is_input() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 1, 9).loader(2, 28).launch_kernel("gemm", 31, 32, 10)
    found = split_ms(causes(builder))
    assert found == {"input": pytest.approx(20), "sync": 0, "host": pytest.approx(3), "other": 0}


def test_a_loader_behind_a_busy_device_costs_nothing() -> None:
    assert split_ms(causes(healthy().loader(20, 60)))["input"] == 0


def test_nested_loader_spans_count_once() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 1, 9).loader(10, 20).launch_kernel("gemm", 30, 30, 10)
    builder.python("torch/utils/data/dataloader.py(701): __next__", 9, 21.5)
    assert split_ms(causes(builder))["input"] == pytest.approx(20)


def test_a_prefetcher_on_another_thread_is_not_input() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 1, 9).loader(10, 20, tid=77).launch_kernel("gemm", 30, 30, 10)
    assert split_ms(causes(builder)) == {"input": 0, "sync": 0, "host": pytest.approx(21), "other": 0}


def test_the_loader_is_found_where_autograd_launches_more_than_the_training_thread() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).loader(10, 20, tid=5)
    builder.annotation("Optimizer.step#SGD.step", 35, 2, tid=5).launch_kernel("gemm", 30, 30, 10)
    assert split_ms(causes(builder))["input"] == pytest.approx(20)


def test_tensorflows_iterator_waits_on_any_thread_of_its_pool() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).op("IteratorGetNext", 10, 20, tid=5)
    assert split_ms(causes(builder.launch_kernel("gemm", 30, 30, 10)))["input"] == pytest.approx(20)


def test_work_launched_after_the_device_ran_dry_is_the_hosts() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).launch_kernel("gemm", 18, 20, 10)
    assert split_ms(causes(builder))["host"] == pytest.approx(10)


def test_work_that_was_queued_in_time_leaves_the_gap_unexplained() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).launch_kernel("gemm", 1, 20, 10)
    assert split_ms(causes(builder)) == {"input": 0, "sync": 0, "host": 0, "other": pytest.approx(10)}


def test_without_launches_nobody_can_be_blamed() -> None:
    found = causes(RunBuilder().kernel("gemm", 0, 10).kernel("gemm", 20, 10))
    assert split_ms(found)["other"] == pytest.approx(10)
    assert found.gaps["late"].null_count() == 1


def test_kernels_of_one_graph_share_its_launch() -> None:
    builder = RunBuilder().launch_kernel("a", 0, 1, 1, api="cudaGraphLaunch")
    builder.kernel("b", 4, 1, correlation=1).kernel("c", 9, 1, correlation=1)
    found = causes(builder)
    assert found.gaps["late"].to_list() == [True, False, False]  # only the gap before the graph was the host's
    assert split_ms(found)["other"] == pytest.approx(2 + 4)


def blocked(*, sync_ms: float, launch_at: float) -> RunBuilder:
    """A kernel until 50 ms, a blocking call that waits for its end, and the next launch at *launch_at*."""
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 50)
    builder.api("cudaStreamSynchronize", 50 - sync_ms, sync_ms)
    return builder.launch_kernel("gemm", launch_at, launch_at + 0.01, 50)


def test_a_blocking_call_owns_the_gap_it_leaves() -> None:
    found = causes(blocked(sync_ms=40, launch_at=56))
    assert split_ms(found)["sync"] == pytest.approx(6.01)
    assert found.syncs["stall_ns"].to_list() == [6_010_000]


def test_a_blocking_call_never_costs_more_than_it_blocked() -> None:
    found = split_ms(causes(blocked(sync_ms=2, launch_at=100)))
    assert [found["sync"], found["host"]] == pytest.approx([2, 48.01])


def test_gaps_after_a_blocking_call_are_its_doing_until_the_host_leads_again() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 50).api("cudaStreamSynchronize", 10, 40)
    for k in range(3):  # three short kernels launched one by one, then a long one that lets the host get ahead
        builder.launch_kernel("tiny", 52 + 3 * k, 52.01 + 3 * k, 1)
    builder.launch_kernel("long", 61, 61.01, 20).launch_kernel("queued", 62, 81.01, 1)
    builder.launch_kernel("late", 90, 90.01, 1)
    found = split_ms(causes(builder))
    assert found["sync"] == pytest.approx(2.01 + 2 + 2 + 2, abs=0.01)
    assert found["host"] == pytest.approx(8, abs=0.01)


def test_two_blocking_calls_share_one_gap() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 50).api("cudaStreamSynchronize", 10, 40.02)
    builder.api("cudaStreamSynchronize", 50.1, 0.02).launch_kernel("gemm", 55, 55.01, 5)
    found = causes(builder)
    assert split_ms(found)["sync"] == pytest.approx(5.01)
    assert found.syncs["stall_ns"].sum() == 5_010_000


def test_a_blocking_call_on_an_idle_device_is_not_to_blame() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).api("cudaStreamSynchronize", 20, 5)
    found = split_ms(causes(builder.launch_kernel("gemm", 40, 40, 10)))
    assert [found["sync"], found["host"]] == pytest.approx([0, 30])


def test_a_blocking_call_at_the_very_end_stalls_nothing() -> None:
    builder = RunBuilder().capture(0, 80).launch_kernel("gemm", 0, 0, 50).api("cudaDeviceSynchronize", 5, 60)
    assert split_ms(causes(builder)) == {"input": 0, "sync": 0, "host": pytest.approx(30), "other": 0}


def test_gaps_in_a_queue_that_drains_under_a_blocking_call_are_not_its_doing() -> None:
    builder = (
        RunBuilder().launch_kernel("a", 0, 0, 10).launch_kernel("b", 0.1, 12, 10).api("cudaDeviceSynchronize", 1, 21)
    )
    found = split_ms(causes(builder.launch_kernel("c", 22.5, 23, 1)))
    assert [found["sync"], found["other"]] == pytest.approx([1, 2])


def test_a_blocking_call_of_a_thread_that_launches_nothing_is_ignored() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 50).api("cudaEventSynchronize", 1, 49, tid=99)
    assert split_ms(causes(builder.launch_kernel("gemm", 56, 56, 5)))["sync"] == 0


def test_a_blocking_copy_is_a_blocking_call_and_an_async_one_is_not() -> None:
    for api, expected in (("cudaMemcpy", 6), ("cudaMemcpyAsync", 0), ("hipMemcpyWithStream", 6)):
        builder = RunBuilder().launch_kernel("gemm", 0, 0, 50).api(api, 10, 40, kind="copy")
        found = split_ms(causes(builder.launch_kernel("gemm", 56, 56, 5)))
        assert found["sync"] == pytest.approx(expected), api


def test_an_operator_that_must_wait_stands_in_where_runtime_calls_are_missing() -> None:
    builder = RunBuilder().kernel("gemm", 0, 50).op("aten::item", 10, 40).op("aten::_local_scalar_dense", 10.1, 39.8)
    found = causes(builder.kernel("gemm", 56, 5))
    assert split_ms(found)["sync"] == pytest.approx(6)
    assert found.syncs["name"].to_list() == ["aten::item"]


def test_nothing_is_idle_between_two_captures() -> None:
    builder = RunBuilder().capture(0, 10).capture(1000, 10)
    builder.launch_kernel("gemm", 0, 0, 10).launch_kernel("gemm", 1000, 1000, 10)
    assert sum(split_ms(causes(builder)).values()) == 0


def test_correlation_ids_that_repeat_are_matched_in_time() -> None:
    builder = RunBuilder().capture(0, 30).capture(1000, 30)
    for at in (0, 1000):
        builder.api("cudaLaunchKernel", at, 0.01, kind="launch", correlation=7)
        builder.kernel("gemm", at + 10, 10, correlation=7)
    assert device_work(builder.build())["launch_start_ns"].to_list() == [ns(0), ns(1000)]


def test_a_host_only_trace_computes_in_its_operators() -> None:
    builder = RunBuilder(device_kind="cpu").op("aten::linear", 0, 10).op("aten::addmm", 1, 8)
    builder.op("SyncBatchNorm", 20, 10).op("aten::mul", 21, 2).op("c10d::allgather_", 23, 6)
    builder.loader(40, 10).op("aten::stack", 41, 5).collective("all_reduce", 60, 5, source="host")
    act = activity(builder.build())[0]
    assert not act.on_device
    assert act.idle is None
    assert (total(act.compute) / 1e6, total(act.comm) / 1e6) == (10 + 2, 5)


def test_asynchronous_communication_of_a_host_only_trace_overlaps_its_operators() -> None:
    builder = RunBuilder(device_kind="cpu").op("aten::mm", 0, 20).collective("all_reduce", 5, 10, source="host")
    act = activity(builder.build())[0]
    assert (total(act.compute) / 1e6, total(act.comm) / 1e6, total(act.busy) / 1e6) == (20, 10, 20)
