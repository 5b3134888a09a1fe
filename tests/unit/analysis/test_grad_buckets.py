"""Gradient reductions: which calls they are, how they lie in backward, and accumulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import polars as pl
import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.collectives import match
from ddiag.analysis.grad_buckets import grad_buckets
from ddiag.model.run import Run
from ddiag.model.signals import GradBuckets
from tests.builders import RunBuilder
from tests.unit.analysis.simulated import every_step_steady

MIB = 1 << 20
LEAF = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
AUTOGRAD = 2


@dataclasses.dataclass
class Training:
    """Ranks that run forward, backward with four parameters, and an optimizer step: 100 ms per pass."""

    ranks: int = 2
    steps: int = 4
    passes: int = 1
    """Backward passes per optimizer step, all in one step."""
    reducing: Sequence[int] = (0,)
    """Which of them reduce."""
    bytes: Sequence[int | None] = (25 * MIB, 24 * MIB, 6 * MIB, 2 * MIB)
    """One bucket per parameter."""
    op: str = "all_reduce"
    dtype: str = "Float"
    gbps: float = 10.0
    alpha_ms: float = 0.1
    sequences: bool = True
    hooked: bool = True
    """Reductions run inside the hook of a finished gradient."""
    first_at_once: bool = False
    """The first step reduces everything in one bucket, as DDP does before it has built its buckets again."""
    scalar_after: bool = False
    after_backward: bool = False
    forward_reductions: int = 0
    late_ms: float = 0.0
    """How much later rank 1 reaches every backward."""
    annotation: str = "DistributedDataParallel.forward"

    def run(self) -> Run:
        builder = RunBuilder(world_size=self.ranks)
        for rank in range(self.ranks):
            for step in range(self.steps):
                self._step(builder.rank(rank), rank, step)
        return builder.build()

    def buckets(self) -> GradBuckets | None:
        run = self.run()
        windows, acts = every_step_steady(run), activity(run)
        return grad_buckets(run, windows, acts, match(run, windows, acts))

    def found(self) -> GradBuckets:
        found = self.buckets()
        assert found is not None
        return found

    def _step(self, builder: RunBuilder, rank: int, step: int) -> None:
        begin = 100.0 * self.passes * step
        builder.step(step, begin, 100.0 * self.passes)
        for number in range(self.passes):
            self._pass(builder, rank, step, number, begin + 100.0 * number)
        end = begin + 100.0 * self.passes
        if self.scalar_after:
            builder.collective("all_reduce", end - 12, 0.05, bytes_in=4, group_size=self.ranks, enqueue_ms=end - 12)
        builder.annotation("Optimizer.step#AdamW.step", end - 10, 5)

    def _pass(self, builder: RunBuilder, rank: int, step: int, number: int, at: float) -> None:
        at += self.late_ms if rank == 1 else 0.0
        builder.annotation(self.annotation, at, 20)
        for k in range(6):
            builder.op("aten::linear", at + 3 * k, 2)
        for k in range(self.forward_reductions):
            builder.collective("all_reduce", at + 4 * k, 1, bytes_in=MIB, group_size=self.ranks, group="tp")
        builder.launch_kernel("gemm", at, at + 2, 18)
        builder.launch_kernel("gemm_backward", at + 22, at + 22, 40, tid=AUTOGRAD)
        at_once = self.first_at_once and step == 0
        reduces = number in self.reducing and not at_once
        first = 100 * (step * self.passes + number)
        builder.op(f"{LEAF[:-29]} AddmmBackward0", at + 22, 1, tid=AUTOGRAD, sequence=self._sequence(first + 99))
        free = 0.0
        for k, size in enumerate(self.bytes):
            leaf = at + 24 + 10 * k
            builder.op(f"{LEAF[:-29]} MulBackward0", leaf, 8, tid=AUTOGRAD, sequence=self._sequence(first + 90 - k))
            builder.op(LEAF, leaf + 8.5, 1, tid=AUTOGRAD)
            if reduces and not self.after_backward:
                free = self._reduce(builder, rank, leaf + (9.0 if self.hooked else 4.0), size, free)
        if at_once:
            self._reduce(builder, rank, at + 64, sum(size or 0 for size in self.bytes), free)
        if reduces and self.after_backward:
            for k, size in enumerate(self.bytes):
                free = self._reduce(builder, rank, at + 66 + k, size, free)

    def _sequence(self, number: int) -> int:
        return number if self.sequences else -1

    def _reduce(self, builder: RunBuilder, rank: int, issued: float, size: int | None, free: float) -> float:
        start = max(issued + 0.1, free)
        ms = self.alpha_ms + (size or MIB) / self.gbps / 1e6 + (0.0 if rank == 1 else self.late_ms)
        builder.collective(
            self.op, start, ms, bytes_in=size, group_size=self.ranks, enqueue_ms=issued, dtype=self.dtype, tid=AUTOGRAD
        )
        return start + ms


def test_buckets_in_launch_order_with_sizes_and_times() -> None:
    found = Training().found()
    assert found.table["index"].to_list() == [0, 1, 2, 3]
    assert found.table["bytes"].to_list() == [25 * MIB, 24 * MIB, 6 * MIB, 2 * MIB]
    assert found.table["dur_ms"].to_list() == pytest.approx([0.1 + size * MIB / 1e7 for size in (25, 24, 6, 2)])
    assert found.table["start_offset_ms"].to_list() == pytest.approx([11.1, 21.1, 31.1, 41.1])
    assert (found.count_per_step, found.reductions_per_optimizer_step) == (4.0, 4.0)
    assert (found.total_bytes, found.largest_bytes, found.median_bytes) == (57 * MIB, 25 * MIB, 15 * MIB)
    assert (found.accumulation, found.synced_backwards, found.issued) == (1, 1, "backward")


def test_the_one_bucket_of_the_first_pass_is_not_the_largest() -> None:
    assert Training(first_at_once=True).found().largest_bytes == 25 * MIB
    assert Training(bytes=(57 * MIB,)).found().largest_bytes == 57 * MIB


def test_latency_and_bandwidth_are_fitted_from_pure_transfers() -> None:
    found = Training(late_ms=5.0).found()
    assert found.alpha_us == pytest.approx(100.0, rel=0.02)
    assert found.beta_gbps == pytest.approx(10.0, rel=0.02)
    assert found.best_bytes is not None


def test_one_rank_gives_no_fit_because_waiting_would_pass_for_latency() -> None:
    found = Training(ranks=1).found()
    assert (found.alpha_us, found.beta_gbps, found.best_bytes, found.predicted_gain_ms) == (None, None, None, None)


def test_the_tail_is_what_outlasts_backward() -> None:
    found = Training().found()
    # Backward's kernels end 62 ms into the pass; the last bucket of 2 MiB starts at 63.1 and nothing runs beside it.
    assert found.tail_exposed_ms == pytest.approx(0.1 + 2 * MIB / 1e7, rel=0.01)
    assert found.exposed_ms == pytest.approx(found.tail_exposed_ms, rel=0.01)


def test_metrics_and_integer_reductions_are_not_gradients() -> None:
    assert Training(scalar_after=True).found().count_per_step == 4.0
    assert Training(dtype="Int").buckets() is None


def test_tensor_parallel_reductions_inside_backward_are_not_gradients() -> None:
    assert Training(hooked=False, forward_reductions=2, bytes=(MIB, MIB)).buckets() is None


def test_sharded_training_has_no_buckets() -> None:
    builder = RunBuilder(world_size=2).step(0, 0, 100).annotation("FSDP::all_gather (layers.0)", 0, 1)
    builder.collective("all_gather", 1, 5, bytes_in=MIB, bytes_out=2 * MIB).op(LEAF, 30, 5, tid=AUTOGRAD)
    builder.collective("reduce_scatter", 33, 5, enqueue_ms=32, bytes_in=2 * MIB, bytes_out=MIB)
    run = builder.launch_kernel("gemm", 0, 10, 20).build()
    windows, acts = every_step_steady(run), activity(run)
    assert grad_buckets(run, windows, acts, match(run, windows, acts)) is None


@pytest.mark.parametrize("sequences", [True, False])
@pytest.mark.parametrize(("reducing", "synced"), [((3,), 1), ((0, 1, 2, 3), 4)])
def test_accumulation_counts_backward_passes_and_those_that_reduce(
    sequences: bool, reducing: tuple[int, ...], synced: int
) -> None:
    found = Training(passes=4, reducing=reducing, sequences=sequences).found()
    assert (found.accumulation, found.synced_backwards) == (4, synced)
    assert found.count_per_step == 4.0 * synced
    assert found.reductions_per_optimizer_step == 4.0 * synced


def test_sizes_that_are_not_recorded_stay_zero_and_give_no_advice() -> None:
    found = Training(bytes=(None, None, None, None)).found()
    assert found.count_per_step == 4.0
    assert (found.total_bytes, found.median_bytes, found.largest_bytes) == (0, 0, 0)
    assert (found.best_bytes, found.predicted_gain_ms) == (None, None)
    assert (found.table["dur_ms"] > 0).all()


def test_a_loop_after_backward_is_found_and_said_to_be_one() -> None:
    found = Training(after_backward=True, scalar_after=True).found()
    assert (found.count_per_step, found.issued) == (4.0, "after_backward")
    assert found.best_bytes is None


def test_waiting_for_a_late_rank_is_no_exposed_reduction() -> None:
    job = Training(late_ms=5.0)
    run = job.run()
    calls = match(run, every_step_steady(run), activity(run))
    assert calls is not None
    assert calls.table.filter(pl.col("rank") == 0)["wait_ms"].to_list() == pytest.approx([5.0] * 16)
    assert job.found().exposed_ms == pytest.approx(Training().found().exposed_ms, rel=0.3)
