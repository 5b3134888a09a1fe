"""Kernels by class, the optimizer's own kernels, and ranks whose same kernels take longer."""

from __future__ import annotations

import pytest

from ddiag.analysis.kernel_mix import kernel_mix
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.signals import KernelMix
from tests.builders import RunBuilder
from tests.shared import shared_data

GEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
TRITON = "triton_poi_fused_add_0"
LOOKUP = "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 2ul>(x)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def mix_of(run: Run) -> KernelMix | None:
    return kernel_mix(run, find_steps(run))


def ms_by_class(mix: KernelMix | None) -> dict[str, float]:
    assert mix is not None
    return dict(mix.table.select("kernel_class", "ms_per_step").iter_rows())


def two_steps(*ranks: int, gemm_ms: float = 10.0) -> RunBuilder:
    """Each rank and step: a GEMM, two additions of 2 ms, an all-reduce of 30 ms on its own stream."""
    run = RunBuilder()
    for rank in ranks or (0,):
        run.rank(rank)
        for step in range(2):
            at = 100.0 * step
            run.step(step, at, 100.0).launch_kernel(GEMM, at + 1, at + 2, gemm_ms)
            run.launch_kernel(ADD, at + 3, at + 40, 2.0).launch_kernel(TRITON, at + 3, at + 43, 2.0)
            run.collective("all_reduce", at + 50, 30.0, name=NCCL)
    return run


def test_time_and_shares_by_class() -> None:
    mix = mix_of(two_steps().build())
    assert ms_by_class(mix) == pytest.approx({"communication": 30.0, "gemm": 10.0, "elementwise": 4.0})
    assert mix is not None
    assert mix.compute_ms == pytest.approx(14.0)
    assert mix.elementwise_share == pytest.approx(4 / 14), "communication waits are no part of the mix of compute"
    assert mix.fused_elementwise_share == pytest.approx(2 / 14)
    assert mix.tiny_share == 0.0
    assert mix.top["name"][0] == NCCL
    assert mix.top.filter(mix.top["name"] == GEMM)["median_us"][0] == pytest.approx(10_000)


def test_kernels_launched_inside_the_optimizer_are_its_own() -> None:
    run = two_steps().annotation("Optimizer.step#SGD.step", 90, 5)
    run.launch_kernel(ADD, 91, 92, 3.0).launch_kernel(ADD, 96, 96, 1.0)
    times = ms_by_class(mix_of(run.build()))
    assert times["optimizer"] == pytest.approx(1.5)
    assert times["elementwise"] == pytest.approx(4.5)


def test_a_slow_device_is_slow_on_all_its_kernels() -> None:
    run = RunBuilder()
    for rank in range(4):
        factor = 1.25 if rank == 2 else 1.0
        run.rank(rank)
        for step in range(2):
            at = 100.0 * step
            run.step(step, at, 100.0).launch_kernel(GEMM, at, at + 1, 20.0 * factor)
            run.launch_kernel(ADD, at + 1, at + 40, 5.0 * factor).launch_kernel(TRITON, at + 2, at + 47, 1.0 * factor)
            run.collective("all_reduce", at + 50, 40.0 - 30.0 * (rank == 2), name=NCCL)
    mix = mix_of(run.build())
    assert mix is not None
    assert mix.per_rank is not None
    assert mix.per_rank["slowdown"].to_list() == pytest.approx([1.0, 1.0, 1.25, 1.0])
    assert mix.per_rank["compute_ms"].to_list() == pytest.approx([26.0, 26.0, 32.5, 26.0])


def test_ranks_with_other_work_are_not_called_slow() -> None:
    run = RunBuilder()
    for rank, layers in ((0, 1), (1, 3)):
        run.rank(rank).step(0, 0, 100)
        for layer in range(layers):
            for nth, name in enumerate((GEMM, ADD, TRITON)):
                run.launch_kernel(name, layer, 1 + 20 * layer + 6 * nth, 3.0 + 2 * rank)
    mix = mix_of(run.build())
    assert mix is not None
    assert mix.per_rank is not None
    assert mix.per_rank["slowdown"].to_list() == [None, None]


def test_more_rows_to_look_up_do_not_make_a_device_slow() -> None:
    """A rank that holds the busier embedding tables spends most of its time there; its other kernels are as fast."""
    run = RunBuilder()
    for rank in range(2):
        run.rank(rank).step(0, 0, 100).launch_kernel(LOOKUP, 0, 1, 20.0 + 40.0 * rank)
        for nth, name in enumerate((GEMM, ADD, TRITON)):
            run.launch_kernel(name, nth, 70 + 6 * nth, 5.0)
    mix = mix_of(run.build())
    assert mix is not None
    assert mix.per_rank is not None
    assert mix.per_rank["slowdown"].to_list() == [1.0, 1.0]


def test_one_rank_has_no_peers() -> None:
    mix = mix_of(two_steps().build())
    assert mix is not None
    assert mix.per_rank is not None
    assert mix.per_rank["slowdown"].to_list() == [None]


def test_a_host_only_trace_counts_operators_by_their_own_time() -> None:
    run = RunBuilder(device_kind="cpu").step(0, 0, 100)
    run.op("aten::linear", 0, 30).op("aten::addmm", 2, 25).op("aten::copy_", 3, 5)
    run.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 40, 20)
    mix = mix_of(run.build())
    assert ms_by_class(mix) == pytest.approx({"gemm": 25.0, "copy": 5.0})
    assert mix is not None
    assert not mix.on_device
    assert mix.per_rank is None


def test_no_work_no_mix() -> None:
    assert mix_of(RunBuilder().step(0, 0, 100).build()) is None


def test_v100_trace_agrees_with_its_file() -> None:
    """404 gradient all-reduces and as many optimizer kernels per step; sums by a plain loop over the JSON."""
    from ddiag.ingest import load

    path = shared_data("facebookresearch+HolisticTraceAnalysis", "df_index_resolver", "df_index_resolver.json.gz")
    mix = mix_of(load([str(path)]))
    times = ms_by_class(mix)
    assert mix is not None
    counts = dict(mix.table.select("kernel_class", "count_per_step").iter_rows())
    assert counts["communication"] == 404
    assert counts["optimizer"] == 404
    assert times["communication"] == pytest.approx(71.4686)
    assert times["gemm"] == pytest.approx(82.801)
    assert mix.compute_ms == pytest.approx(124.1032)
