"""Looking up one rank's rows."""

from __future__ import annotations

import gc
import weakref

import pytest

from ddiag.analysis.memo import once_per_run
from ddiag.analysis.rank_rows import DEVICE_WORK, rows_of
from ddiag.analysis.rank_walk import by_rank
from ddiag.model.run import Run
from tests.builders import RunBuilder


@pytest.fixture
def run() -> Run:
    """Rows of two ranks that alternate, as no reader promises an order."""
    builder = RunBuilder()
    for k in range(4):
        builder.rank(k % 2).launch_kernel(f"kernel{k}", k, k, 1)
    return builder.build()


@pytest.mark.parametrize("table", ["kernels", DEVICE_WORK])
def test_each_rank_gets_its_rows_in_their_order(run: Run, table: str) -> None:
    assert rows_of(run, table, 0)["name"].to_list() == ["kernel0", "kernel2"]
    assert rows_of(run, table, 1)["name"].to_list() == ["kernel1", "kernel3"]


def test_a_rank_or_table_that_is_not_there_gives_no_rows(run: Run) -> None:
    assert rows_of(run, "kernels", 7).is_empty()
    assert rows_of(run, "memory", 0).is_empty()


def test_a_table_is_walked_rank_by_rank(run: Run) -> None:
    walked = [(rank, rows["name"].to_list()) for rank, rows in by_rank(run.table("kernels"))]
    assert walked == [(0, ["kernel0", "kernel2"]), (1, ["kernel1", "kernel3"])]


def test_work_is_done_once_per_run_and_arguments(run: Run) -> None:
    calls: list[int] = []

    @once_per_run
    def shared(run: Run, rank: int) -> int:
        calls.append(rank)
        return run.table("kernels").height + rank

    assert [shared(run, 0), shared(run, 0), shared(run, 1)] == [4, 4, 5]
    assert calls == [0, 1]


def test_what_is_remembered_goes_with_its_run() -> None:
    kept: list[weakref.ref[object]] = []

    class Result:
        pass

    @once_per_run
    def shared(run: Run) -> Result:
        return Result()

    run = RunBuilder().kernel("gemm", 0, 1).build()
    kept.append(weakref.ref(shared(run)))
    assert kept[0]() is not None
    del run
    gc.collect()
    assert kept[0]() is None
