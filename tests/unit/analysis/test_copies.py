"""Bandwidth, exposure and pinning of host copies; offloading told apart from the next batch."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.copies import copies
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.signals import Copies
from tests.builders import RunBuilder
from tests.shared import shared_data

MIB = 1 << 20
GIB = 1 << 30
AUTOGRAD = 2


def copies_of(run: RunBuilder | Run) -> Copies:
    built = run if isinstance(run, Run) else run.build()
    found = copies(built, find_steps(built), activity(built))
    assert found is not None
    return found


def step(number: int = 0) -> RunBuilder:
    """100 ms, busy from 20 to 90 ms; backward on the host from 40 to 60 ms, the optimizer from 62 to 70 ms."""
    run = RunBuilder()
    training(run, number)
    return run


def training(run: RunBuilder, number: int) -> None:
    at = 100.0 * number
    run.step(number, at, 100).launch_kernel("ampere_sgemm_128x64_nn", at + 10, at + 20, 70)
    run.op("autograd::engine::evaluate_function: AddmmBackward0", at + 40, 20, tid=AUTOGRAD, sequence=1, fwd_tid=1)
    run.annotation("Optimizer.step#AdamW.step", at + 62, 8).launch_kernel("fused", at + 63, at + 90, 1)


def test_bandwidth_is_bytes_over_the_time_any_copy_ran() -> None:
    run = step().copy("h2d", 0, 10, bytes=250_000_000, pinned=True, stream=8, launch_ms=0)
    run.copy("h2d", 5, 10, bytes=250_000_000, pinned=True, stream=9, launch_ms=1)
    found = copies_of(run)
    assert found.h2d_gbps == pytest.approx(500 / 15)
    assert found.d2h_gbps is None
    assert found.bytes_per_step == 500_000_000
    assert found.link_busy_share == pytest.approx(0.15)
    assert found.pageable_share == 0.0


def test_a_copy_is_exposed_only_while_the_device_does_nothing_else() -> None:
    found = copies_of(step().copy("h2d", 15, 10, bytes=64 * MIB, pinned=False, stream=8, launch_ms=0))
    assert found.exposed_ms == pytest.approx(5.0)
    assert found.pageable_exposed_ms == pytest.approx(5.0)
    assert found.pageable_share == 1.0
    assert found.table["exposed_ms"].to_list() == pytest.approx([5.0])


def test_opposite_directions_are_one_exposure_but_two_loads_of_the_link() -> None:
    run = step().copy("h2d", 0, 10, bytes=MIB, stream=8, launch_ms=0)
    run.copy("d2h", 0, 6, bytes=MIB, stream=9, launch_ms=0)
    found = copies_of(run)
    assert found.exposed_ms == pytest.approx(10.0)
    assert found.link_busy_share == pytest.approx(0.10)


def test_copies_inside_the_device_do_not_use_the_link() -> None:
    run = step().copy("d2d", 0, 10, bytes=GIB, stream=8, launch_ms=0)
    found = copies_of(run.copy("memset", 0, 5, bytes=MIB, stream=8, launch_ms=0))
    assert found.bytes_per_step == 0
    assert found.exposed_ms == 0
    assert found.table.is_empty()


def test_small_copies_do_not_make_a_slow_link() -> None:
    found = copies_of(step().copy("d2h", 0, 0.01, bytes=8, launch_ms=0).copy("h2d", 1, 2, bytes=64 * MIB, launch_ms=0))
    assert found.d2h_gbps is None
    assert found.table.filter(found.table["direction"] == "d2h")["gbps"][0] == pytest.approx(8e-4)
    assert found.per_rank is not None
    assert found.per_rank.row(0)[1:] == (pytest.approx(64 * MIB / 2e6), None)


def test_unknown_pinning_stays_unknown() -> None:
    found = copies_of(step().copy("h2d", 0, 5, bytes=64 * MIB, pinned=None, launch_ms=0))
    assert found.pageable_share is None
    assert found.pageable_exposed_ms == 0.0


def test_the_next_batch_is_no_offload() -> None:
    run = step()
    for nth in range(6):
        run.copy("h2d", nth, 1, bytes=64 * MIB, launch_ms=nth)
    assert copies_of(run.copy("d2h", 95, 0.1, bytes=4, launch_ms=80)).offload == ""


def test_a_batch_copied_between_accumulated_backwards_is_no_offload() -> None:
    run = step().op("autograd::engine::evaluate_function: B", 70, 10, tid=AUTOGRAD, sequence=2, fwd_tid=1)
    run.copy("h2d", 1, 1, bytes=64 * MIB, launch_ms=0.5).copy("h2d", 62, 1, bytes=64 * MIB, launch_ms=61)
    assert copies_of(run).offload == ""


def test_a_checkpoint_written_once_is_no_offload() -> None:
    run = step()
    for nth in range(8):
        run.copy("d2h", 90 + nth, 0.9, bytes=128 * MIB, launch_ms=80 + nth)
    assert copies_of(run).offload == ""


def test_activations_go_out_in_forward_and_come_back_in_backward() -> None:
    run = step()
    for nth in range(4):
        run.copy("d2h", 20 + 2 * nth, 1, bytes=(8 + nth) * MIB, launch_ms=11 + nth, stream=8)
        run.copy("h2d", 92 + 2 * nth, 1, bytes=(11 - nth) * MIB, launch_ms=41 + nth, stream=9, tid=AUTOGRAD)
    found = copies_of(run)
    assert found.offload == "activations"
    assert found.offload_exposed_ms == pytest.approx(4.0)


def test_parameters_come_in_for_forward_and_again_for_backward() -> None:
    run = step()
    for nth in range(8):
        run.copy("h2d", 20 + nth, 1, bytes=32 * MIB, launch_ms=11 + nth, stream=8)
        run.copy("h2d", 50 + nth, 1, bytes=32 * MIB, launch_ms=41 + nth, stream=8)
    assert copies_of(run).offload == "parameters"


def test_gradients_out_parameters_in_around_a_cpu_optimizer() -> None:
    run = RunBuilder().step(0, 0, 100).launch_kernel("ampere_sgemm_128x64_nn", 10, 20, 30)
    run.op("autograd::engine::evaluate_function: AddmmBackward0", 40, 10, tid=AUTOGRAD, sequence=1, fwd_tid=1)
    run.copy("d2h", 51, 4, bytes=512 * MIB, launch_ms=45, pinned=True)
    run.annotation("Optimizer.step#DeepSpeedCPUAdam.step", 56, 30).op("aten::_foreach_add_", 57, 28)
    run.copy("h2d", 88, 2, bytes=256 * MIB, launch_ms=87, pinned=True)
    found = copies_of(run)
    assert found.offload == "optimizer"
    assert found.cpu_optimizer_ms == pytest.approx(30.0)
    assert found.offload_exposed_ms == pytest.approx(6.0)


def test_an_optimizer_on_the_device_costs_no_cpu_time() -> None:
    assert copies_of(step().copy("h2d", 0, 5, bytes=64 * MIB, launch_ms=0)).cpu_optimizer_ms == 0.0


def test_heavy_traffic_both_ways_without_a_pattern_is_unknown() -> None:
    run = step().copy("h2d", 0, 9, bytes=300 * MIB, launch_ms=1).copy("d2h", 92, 8, bytes=200 * MIB, launch_ms=75)
    assert copies_of(run).offload == "unknown"


def test_a_run_without_copies_has_none() -> None:
    run = RunBuilder().step(0, 0, 100).launch_kernel("gemm", 0, 1, 50).build()
    assert copies(run, find_steps(run), activity(run)) is None


def test_a100_input_copies_agree_with_their_file() -> None:
    """Six steps of one rank: 423.9 MB of pinned input, sums by a plain loop over the JSON."""
    from ddiag.ingest import load

    path = shared_data("facebookresearch+HolisticTraceAnalysis", "trace_diff", "control", "control.json.gz")
    found = copies_of(load([str(path)]))
    row = found.table.row(0, named=True)
    assert (row["direction"], row["pinned"], row["count_per_step"]) == ("h2d", True, 25)
    assert row["bytes_per_step"] == 70_653_877
    assert row["ms_per_step"] == pytest.approx(8.442667, abs=1e-5)
    assert found.offload == ""
