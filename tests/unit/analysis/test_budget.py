"""The split of a step: parts that exclude each other and sum to it."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddiag.analysis.activity import activity
from ddiag.analysis.budget import step_budget
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, StepBudget
from tests.builders import RunBuilder, ns

PARTS = ["compute_ms", "comm_wait_ms", "comm_transfer_ms", "copy_ms", "input_ms", "sync_ms", "host_ms", "idle_ms"]


def budget_of(run: Run, collectives: Collectives | None = None) -> StepBudget:
    found = step_budget(run, find_steps(run), activity(run), collectives)
    assert found is not None
    return found


def row(budget: StepBudget, step: int, rank: int = 0) -> dict[str, float]:
    found = budget.table.filter((pl.col("step") == step) & (pl.col("rank") == rank))
    return {name.removesuffix("_ms"): value for name, value in found.row(0, named=True).items() if name.endswith("_ms")}


def matched(*calls: tuple[int, float, float, float]) -> Collectives:
    """Matched calls as (rank, start, duration, wait), in ms."""
    rows = [
        {"rank": rank, "start_ns": ns(at), "end_ns": ns(at + length), "wait_ms": wait, "matched": True}
        for rank, at, length, wait in calls
    ]
    return Collectives(
        table=pl.DataFrame(rows),
        summary=pl.DataFrame(),
        comm_ms=1,
        exposed_ms=1,
        blocking_ms=1,
        overlapped_ms=0,
        exposed_share=0,
        overlap_share=0,
        matched_ranks=2,
    )


def everything(step: int, at: float) -> RunBuilder:
    """A 100 ms step with some of each part."""
    builder = RunBuilder().step(step, at, 100)
    builder.loader(at, 10)  # input 10
    builder.launch_kernel("gemm", at + 11, at + 12, 30)  # host 2, compute 30
    builder.collective("all_reduce", at + 32, 20, enqueue_ms=at + 12)  # overlaps 10, exposed 10
    builder.copy("h2d", at + 50, 8, launch_ms=at + 13)  # 2 hidden, 6 exposed
    builder.api("cudaStreamSynchronize", at + 20, 38)
    builder.launch_kernel("gemm", at + 63, at + 64, 20)  # sync 6
    builder.launch_kernel("gemm", at + 64, at + 88, 12)  # queued, idle 4
    return builder


def test_every_part_of_a_step_is_found() -> None:
    found = row(budget_of(everything(3, 0).build()), 3)
    assert found == {
        "step": pytest.approx(100),
        "compute": pytest.approx(62),
        "comm_wait": 0,
        "comm_transfer": pytest.approx(10),
        "copy": pytest.approx(6),
        "input": pytest.approx(10),
        "sync": pytest.approx(6),
        "host": pytest.approx(2),
        "idle": pytest.approx(4),
        "overlapped_comm": pytest.approx(10),
    }


def test_waiting_lies_at_the_start_of_a_matched_collective() -> None:
    builder = RunBuilder().step(1, 0, 100).launch_kernel("gemm", 0, 0, 40)
    builder.collective("all_reduce", 30, 50, enqueue_ms=1).launch_kernel("gemm", 2, 80, 20)
    found = row(budget_of(builder.build(), matched((0, 30, 50, 35))), 1)
    assert [found["comm_wait"], found["comm_transfer"]] == pytest.approx([25, 15])


def test_moving_data_beside_a_waiting_call_is_not_waiting() -> None:
    builder = RunBuilder().step(1, 0, 100).launch_kernel("gemm", 0, 0, 20).launch_kernel("gemm", 2, 80, 20)
    builder.collective("all_reduce", 20, 60, enqueue_ms=1)
    builder.collective("all_gather", 30, 20, enqueue_ms=1, group="1", stream=30)
    found = row(budget_of(builder.build(), matched((0, 20, 60, 50), (0, 30, 20, 0))), 1)
    assert [found["comm_wait"], found["comm_transfer"]] == pytest.approx([30, 30])


def test_unmatched_communication_is_transfer_and_the_note_says_so() -> None:
    builder = RunBuilder().step(1, 0, 50).launch_kernel("gemm", 0, 0, 20).collective("all_reduce", 20, 30, enqueue_ms=1)
    alone = budget_of(builder.build())
    assert [row(alone, 1)["comm_wait"], row(alone, 1)["comm_transfer"]] == pytest.approx([0, 30])
    assert "cannot be told apart" in alone.note
    together = budget_of(builder.build(), matched((0, 20, 30, 10)))
    assert "cannot be told apart" not in together.note


def test_a_run_without_communication_needs_no_such_note() -> None:
    assert "told apart" not in budget_of(RunBuilder().step(1, 0, 50).launch_kernel("gemm", 0, 0, 50).build()).note


def test_a_host_only_trace_gives_what_is_left_to_the_host() -> None:
    builder = RunBuilder(device_kind="cpu").step(1, 0, 100).loader(0, 20).op("aten::mm", 20, 30)
    builder.collective("all_reduce", 40, 30, source="host")
    budget = budget_of(builder.build())
    found = row(budget, 1)
    assert not budget.on_device
    assert {name: found[name] for name in ("compute", "comm_transfer", "input", "host", "idle", "sync")} == {
        "compute": pytest.approx(30),
        "comm_transfer": pytest.approx(20),
        "input": pytest.approx(20),
        "host": pytest.approx(30),
        "idle": 0,
        "sync": 0,
    }


def test_a_rank_without_device_work_is_left_out_of_a_device_run_with_a_note() -> None:
    builder = RunBuilder()
    for rank in range(3):
        builder.rank(rank).step(1, 0, 50).launch_kernel("gemm", 0, 0, 50)
    budget = budget_of(builder.rank(3).step(1, 0, 50).op("aten::mm", 0, 10).build())
    assert budget.table["rank"].to_list() == [0, 1, 2]
    assert "1 rank(s) left out" in budget.note


def test_warm_up_is_in_the_table_but_not_in_the_figures() -> None:
    builder = RunBuilder()
    at = 0.0
    for step, length in enumerate((500, 100, 100, 100)):
        builder.step(step, at, length).launch_kernel("gemm", at, at, 90)
        at += length
    budget = budget_of(builder.build())
    assert (budget.step_ms, budget.warmup_ms, budget.n_steps) == (100, 500, 3)
    assert budget.excluded_steps == (0,)
    assert budget.table.height == 4
    assert budget.mean("compute_ms") == pytest.approx(90)


def test_nothing_to_split_gives_no_budget() -> None:
    run = RunBuilder().build()
    assert step_budget(run, find_steps(run), activity(run), None) is None


span = st.tuples(st.integers(0, 290), st.integers(1, 60))


@settings(max_examples=60, deadline=None)
@given(
    compute=st.lists(span, max_size=12),
    comm=st.lists(span, max_size=6),
    copies=st.lists(span, max_size=6),
    loads=st.lists(span, max_size=4),
    syncs=st.lists(span, max_size=4),
    waits=st.lists(span, max_size=4),
)
def test_whatever_happens_the_parts_sum_to_the_step(
    compute: list[tuple[int, int]],
    comm: list[tuple[int, int]],
    copies: list[tuple[int, int]],
    loads: list[tuple[int, int]],
    syncs: list[tuple[int, int]],
    waits: list[tuple[int, int]],
) -> None:
    builder = RunBuilder().capture(0, 360)
    for k in range(3):
        builder.step(k, 100 * k, 100)
    for k, (at, length) in enumerate(compute):
        builder.launch_kernel("gemm", at / 2, at, length, stream=k % 3)
    for at, length in comm:
        builder.collective("all_reduce", at, length, enqueue_ms=at - 1)
    for at, length in copies:
        builder.copy("d2h", at, length, launch_ms=at - 1)
    for at, length in loads:
        builder.loader(at, length)
    for at, length in syncs:
        builder.api("cudaStreamSynchronize", at, length)
    run = builder.build()
    calls = matched(*((0, at, length, length / 3) for at, length in waits)) if waits else None
    found = step_budget(run, find_steps(run), activity(run), calls)
    if found is None:
        assert not compute + comm + copies + loads
        return
    summed = found.table.select(pl.sum_horizontal(PARTS)).to_series()
    assert (summed - found.table["step_ms"]).abs().max() < 1e-6
    assert found.table.select(pl.min_horizontal(PARTS) >= 0).to_series().all()
    steady = found.table.filter("steady")
    assert steady["start_ns"][1:].to_list() == steady["end_ns"][:-1].to_list()
