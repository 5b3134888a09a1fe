"""How the host keeps the device fed."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.host_launch import host_launch
from ddiag.analysis.steps import find_steps
from ddiag.model.signals import HostLaunch
from tests.builders import RunBuilder


def signal(builder: RunBuilder) -> HostLaunch | None:
    run = builder.build()
    return host_launch(run, find_steps(run), activity(run))


def launch_bound(steps: int = 4, kernels: int = 50) -> RunBuilder:
    """Every 2 ms a launch of a 0.1 ms kernel that starts 0.01 ms later."""
    builder = RunBuilder().capture(0, 100 * steps)
    for k in range(steps):
        builder.step(k, 100 * k, 100)
        for n in range(kernels):
            at = 100 * k + 2 * n
            builder.op("aten::add", at, 1.5).launch_kernel("add", at, at + 0.01, 0.1)
    return builder


def test_gaps_before_late_launches_are_launch_gaps() -> None:
    found = signal(launch_bound())
    assert found is not None
    assert found.launches_per_step == 50
    assert found.median_kernel_us == pytest.approx(100)
    assert found.launch_gap_ms == pytest.approx(100 - 5, abs=0.1)
    assert found.kernel_wait_ms == 0
    assert found.launch_gap_share == pytest.approx(0.95, abs=0.01)
    assert found.host_busy_share == pytest.approx(0.75)
    assert found.graph_launches_per_step == 0


def test_gaps_between_queued_kernels_are_kernel_wait() -> None:
    builder = RunBuilder()
    for k in range(3):
        builder.step(k, 100 * k, 100)
        for n in range(10):
            builder.launch_kernel("gemm", 100 * k + 0.01 * n, 100 * k + 0.1 + 10 * n, 9)
    found = signal(builder)
    assert found is not None
    assert found.kernel_wait_ms == pytest.approx(9, abs=0.5)
    assert found.launch_gap_ms < 1.5


def test_a_graph_is_one_launch_however_many_kernels_it_runs() -> None:
    builder = RunBuilder()
    for k in range(3):
        builder.step(k, 100 * k, 100).launch_kernel("a", 100 * k, 100 * k + 1, 1, api="cudaGraphLaunch")
        for n in range(1, 30):
            builder.kernel("b", 100 * k + 1 + 3 * n, 1, correlation=k + 1)
    found = signal(builder)
    assert found is not None
    assert (found.launches_per_step, found.graph_launches_per_step) == (1, 1)
    assert found.kernel_wait_ms == pytest.approx(2 * 29, abs=0.5)


def with_pause(name: str = "", *, kind: str = "python", pause_ms: float = 30) -> RunBuilder:
    """Steps whose host pauses in the middle, inside a span *name* if given."""
    builder = RunBuilder()
    for k in range(3):
        at = 100 * k
        builder.step(k, at, 100).launch_kernel("gemm", at, at + 0.01, 40).python("train.py(9): main", at, 100)
        if name:
            builder.op(name, at + 40, pause_ms, kind=kind)
        builder.launch_kernel("gemm", at + 40 + pause_ms, at + 40.01 + pause_ms, 59.99 - pause_ms)
    return builder


def test_long_gaps_are_listed_with_what_the_host_did() -> None:
    found = signal(with_pause("metrics.py(12): evaluate"))
    assert found is not None
    assert found.long_gaps is not None
    assert found.long_gaps.select("step", "top_op").rows() == [(k, "metrics.py(12): evaluate") for k in range(3)]
    assert found.long_gaps["gap_ms"].to_list() == pytest.approx([30] * 3)
    assert found.long_gaps["host_ms_in_calls"].to_list() == pytest.approx([0] * 3, abs=0.02)


def test_a_long_gap_without_any_span_names_nobody() -> None:
    found = signal(with_pause())
    assert found is not None
    assert found.long_gaps is not None
    assert found.long_gaps["top_op"].to_list() == ["", "", ""]


def test_an_operator_in_a_long_gap_is_host_time_in_calls() -> None:
    found = signal(with_pause("aten::unique", kind="op"))
    assert found is not None
    assert found.long_gaps is not None
    assert found.long_gaps["host_ms_in_calls"].to_list() == pytest.approx([30] * 3, abs=0.05)


def test_gaps_of_the_loader_or_of_a_blocking_call_are_not_listed() -> None:
    assert (found := signal(with_pause("enumerate(DataLoader)#_X.__next__"))) is not None
    assert found.long_gaps is not None
    assert found.long_gaps.is_empty()
    builder = with_pause()
    for k in range(3):
        builder.api("cudaStreamSynchronize", 100 * k + 5, 35.1)
    assert (found := signal(builder)) is not None
    assert found.long_gaps is not None
    assert found.long_gaps.is_empty()


@pytest.mark.parametrize(("launch_dur_ms", "share"), [(0.005, 0.0), (1.2, 1.0)])
def test_launches_that_return_after_their_kernel_are_blocking(launch_dur_ms: float, share: float) -> None:
    builder = RunBuilder()
    for k in range(3):
        builder.step(k, 100 * k, 100)
        for n in range(30):
            at = 100 * k + 3 * n
            builder.launch_kernel("gemm", at, at + 0.1, 1, launch_dur_ms=launch_dur_ms)
    found = signal(builder)
    assert found is not None
    assert found.blocking_launch_share == share


def test_too_few_long_kernels_cannot_tell_whether_launches_block() -> None:
    found = signal(RunBuilder().step(0, 0, 10).launch_kernel("gemm", 0, 0.1, 1, launch_dur_ms=1.2))
    assert found is not None
    assert found.blocking_launch_share is None


def test_time_blocked_or_loading_is_not_busy() -> None:
    builder = RunBuilder().step(0, 0, 100).launch_kernel("gemm", 0, 0.01, 50).op("aten::item", 10, 40)
    builder.api("cudaStreamSynchronize", 10, 40).loader(50, 30).op("aten::stack", 55, 20).op("aten::mm", 80, 10)
    builder.launch_kernel("gemm", 80, 80.01, 19)
    found = signal(builder)
    assert found is not None
    assert found.host_busy_share == pytest.approx(0.10, abs=0.001)


def test_warm_up_steps_do_not_count() -> None:
    builder = launch_bound()
    builder.step(-1, -900, 900)
    for n in range(50):
        builder.launch_kernel("init", -900 + n, -899.9 + n, 0.5)
    found = signal(builder)
    assert found is not None
    assert found.median_kernel_us == pytest.approx(100)
    assert found.launches_per_step == 50


def test_without_launches_or_without_a_device_nothing_is_said() -> None:
    assert signal(RunBuilder().step(0, 0, 100).kernel("gemm", 0, 10).kernel("gemm", 20, 10)) is None
    assert signal(RunBuilder(device_kind="cpu").step(0, 0, 100).op("aten::mm", 0, 10)) is None
