"""Peaks, timeline, trend and allocator calls."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pytest

from ddiag.analysis.memory import allocator_calls, memory
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.signals import AllocatorCalls, Memory
from ddiag.model.tables import TABLES
from tests.builders import RunBuilder, ns

GIB = 1 << 30
Point = tuple[float, float, float]
"""ms, allocated GiB, reserved GiB."""


def with_memory(run: RunBuilder, points: Iterable[Point], *, device: str = "cuda:0", capacity_gib: int = 80) -> Run:
    built = run.build()
    rows = [
        {
            "rank": 0,
            "device": device,
            "ts_ns": ns(ms),
            "bytes": 1,
            "allocated_bytes": round(allocated * GIB),
            "reserved_bytes": round(reserved * GIB),
        }
        for ms, allocated, reserved in points
    ]
    tables = {
        **built.tables,
        "memory": TABLES["memory"].conform(pl.DataFrame(rows)),
        "ranks": built.table("ranks").with_columns(pl.lit(capacity_gib * GIB).alias("device_memory_bytes")),
    }
    return Run(tables, built.coverage)


def memory_of(run: Run) -> Memory:
    found = memory(run, find_steps(run))
    assert found is not None
    return found


def steps(count: int = 6) -> RunBuilder:
    run = RunBuilder()
    for step in range(count):
        work(run.step(step, 100.0 * step, 100), 100.0 * step)
    return run


def work(run: RunBuilder, at: float) -> None:
    """Twenty kernels of 3 ms: enough that a few calls more do not look like another kind of step."""
    for nth in range(20):
        run.launch_kernel("gemm", at + 0.1 * nth, at + 1 + 3 * nth, 3)


def test_peaks_against_capacity() -> None:
    found = memory_of(with_memory(steps(), [(1, 10, 20), (50, 60, 76), (90, 30, 76)]))
    row = found.per_rank.row(0, named=True)
    assert (row["peak_allocated_bytes"], row["peak_reserved_bytes"]) == (60 * GIB, 76 * GIB)
    assert row["capacity_bytes"] == 80 * GIB
    assert found.peak_share == pytest.approx(0.95)
    assert found.reserved_unused_share == pytest.approx(16 / 76), "at the fullest moment, not between steps"


def test_an_allocator_that_reports_no_reservation_leaves_it_unknown() -> None:
    found = memory_of(with_memory(steps(), [(1, 10, 0), (50, 60, 0)]))
    assert found.per_rank["peak_reserved_bytes"].to_list() == [None]
    assert found.reserved_unused_share is None
    assert found.peak_share == pytest.approx(0.75)


def test_host_memory_is_not_device_memory() -> None:
    run = with_memory(steps(), [(1, 10, 0)], device="cpu")
    assert memory(run, find_steps(run)) is None


def test_memory_that_grows_each_step_has_a_slope() -> None:
    points = [(100.0 * step + at, 10 + step + high, 40) for step in range(6) for at, high in ((20, 20), (95, 0))]
    assert memory_of(with_memory(steps(), points)).growth_bytes_per_step == pytest.approx(GIB, rel=0.01)


def test_one_jump_is_no_growth() -> None:
    points = [(100.0 * step + 95, 10 + 5 * (step == 3), 40) for step in range(6)]
    assert memory_of(with_memory(steps(), points)).growth_bytes_per_step == 0


def test_three_steps_make_no_trend() -> None:
    points = [(100.0 * step + 95, 10 + step, 40) for step in range(3)]
    assert memory_of(with_memory(steps(3), points)).growth_bytes_per_step is None


def test_the_timeline_is_thinned_without_losing_the_peak() -> None:
    points = [(0.1 * nth, 10 + (nth % 7) + 50 * (nth == 4321), 79) for nth in range(6000)]
    timeline = memory_of(with_memory(steps(), points)).timeline
    assert timeline.height <= 2000
    assert timeline["allocated_bytes"].max() == points[4321][1] * GIB
    assert timeline["ts_ns"].is_sorted()


def allocator_of(run: RunBuilder) -> AllocatorCalls | None:
    built = run.build()
    return allocator_calls(built, find_steps(built))


def test_allocation_inside_steady_steps_is_counted_on_the_worst_rank() -> None:
    run = steps(5)
    for step in range(1, 5):
        run.api("cudaFree", 100 * step + 10, 6, kind="free").api("cudaMalloc", 100 * step + 20, 4, kind="alloc")
    run.rank(1)
    for step in range(5):
        work(run.step(step, 100.0 * step, 100), 100.0 * step)
    found = allocator_of(run)
    assert found is not None
    assert found.worst_rank == 0
    assert found.mallocs_per_step == pytest.approx(0.8)
    assert found.frees_per_step == pytest.approx(0.8)
    assert found.ms_per_step == pytest.approx(8.0)
    assert found.share == pytest.approx(0.08)


def test_the_first_steps_allocations_are_warm_up() -> None:
    run = RunBuilder().step(0, 0, 300)
    work(run, 0)
    for nth in range(20):
        run.api("cudaMalloc", 70 + 10 * nth, 9, kind="alloc")
    for step in range(1, 6):
        at = 200.0 + 100 * step
        work(run.step(step, at, 100), at)
    found = allocator_of(run)
    assert found is not None
    assert found.mallocs_per_step == 0
    assert found.ms_per_step == 0


def test_page_locked_host_memory_is_not_the_caching_allocators() -> None:
    run = steps()
    for step in range(6):
        run.api("cudaHostAlloc", 100 * step + 10, 5, kind="alloc").api("cudaFreeHost", 100 * step + 20, 5, kind="free")
    found = allocator_of(run)
    assert found is not None
    assert found.ms_per_step == 0


def test_a_capture_without_steps_says_nothing() -> None:
    run = RunBuilder().launch_kernel("gemm", 0, 1, 60).api("cudaMalloc", 70, 9, kind="alloc")
    assert allocator_of(run) is None
