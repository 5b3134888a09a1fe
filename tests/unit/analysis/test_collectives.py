"""Matching, waiting and transfer, exposure, and when to claim none of them."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.collectives import match
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.signals import Collectives
from ddiag.model.tables import TABLES
from tests.builders import RunBuilder
from tests.unit.analysis.simulated import Compute, Job, Meet, collectives_of, every_step_steady

WORLD = {"0": (0, 1, 2, 3)}
MIB = 1 << 20


def waits(found: Collectives, step: int = 2) -> dict[int, float | None]:
    rows = found.table.filter(pl.col("step") == step).group_by("rank").agg(pl.col("wait_ms").sum())
    return {rank: round(wait, 6) for rank, wait in rows.sort("rank").iter_rows()}


def late_two(rank: int, step: int) -> list[Compute | Meet]:
    return [Compute(16 if rank == 2 else 10), Meet("0", transfer_ms=1.5)]


def test_the_shortest_duration_is_the_transfer_and_the_rest_is_waiting() -> None:
    found = collectives_of(Job(WORLD, late_two).run())
    assert waits(found) == {0: 6.0, 1: 6.0, 2: 0.0, 3: 6.0}
    assert found.table["transfer_ms"].unique().to_list() == pytest.approx([1.5])
    assert found.matched_ranks == 4
    assert found.table["matched"].all()


def test_waiting_does_not_depend_on_the_clocks() -> None:
    clocks = {1: 700.0, 2: -250.0, 3: 3.0}
    found = collectives_of(Job(WORLD, late_two, clock_ms=clocks, steps=9).run())
    assert waits(found) == {0: 6.0, 1: 6.0, 2: 0.0, 3: 6.0}


def test_one_rank_alone_cannot_tell_waiting_from_transfer() -> None:
    found = collectives_of(Job(WORLD, late_two, traced=(1,)).run())
    assert found.matched_ranks == 1
    assert found.table["wait_ms"].null_count() == found.table.height
    assert not found.table["matched"].any()
    assert found.summary["wait_ms"].to_list() == [None]
    assert found.summary["busbw_gbps"].to_list() == [None]


def test_windows_a_step_apart_blame_nobody_for_another_step() -> None:
    def one_slow_step(rank: int, step: int) -> list[Compute | Meet]:
        return [Compute(60 if rank == 1 and step == 3 else 10), Meet("0"), Compute(2), Meet("0")]

    job = Job({"0": (0, 1)}, one_slow_step, steps=7, first_step={1: 1}, last_step={0: 5}, numbered_steps={1: -1})
    found = collectives_of(job.run())
    both = found.table.filter("matched")
    assert both["call"].n_unique() == 10  # steps 1 to 5, two calls each
    by_rank = both.group_by("rank").agg(pl.col("wait_ms").sum()).sort("rank")
    assert by_rank["wait_ms"].to_list() == pytest.approx([50.0, 0.0])


def test_names_repeat_for_different_sets_of_ranks() -> None:
    def program(rank: int, step: int) -> list[Compute | Meet]:
        return [Compute(10 + 2 * rank), Meet("tp@0" if rank < 2 else "tp@1")]

    found = collectives_of(Job({"tp@0": (0, 1), "tp@1": (2, 3)}, program).run())
    first = found.table.filter(pl.col("step") == 0)
    assert dict(first.select("rank", pl.col("wait_ms").round(6)).sort("rank").iter_rows()) == {0: 2, 1: 0, 2: 2, 3: 0}
    assert first["comm"].n_unique() == 2


def test_a_name_used_by_more_ranks_than_the_group_has_is_not_matched_without_member_lists() -> None:
    def program(rank: int, step: int) -> list[Compute | Meet]:
        return [Compute(10 + rank), Meet("tp@0" if rank < 2 else "tp@1")]

    run = Job({"tp@0": (0, 1), "tp@1": (2, 3)}, program).run()
    run = dataclasses.replace(run, tables={k: v for k, v in run.tables.items() if k != "groups"})
    assert not collectives_of(run).table["matched"].any()


def test_nameless_groups_are_matched_when_all_ranks_leave_together() -> None:
    found = collectives_of(Job(WORLD, late_two, named_groups=False).run())
    assert waits(found) == {0: 6.0, 1: 6.0, 2: 0.0, 3: 6.0}
    assert found.table["group_size"].unique().to_list() == [4]  # all ranks of the job took part


def test_nameless_groups_that_are_really_two_groups_are_not_matched() -> None:
    def program(rank: int, step: int) -> list[Compute | Meet]:
        return [Compute(10 + (15 if rank > 1 else 0) + 3 * (rank % 2)), Meet("a" if rank < 2 else "b")]

    found = collectives_of(Job({"a": (0, 1), "b": (2, 3)}, program, named_groups=False).run())
    assert found.table["wait_ms"].null_count() == found.table.height
    assert "not matched" in found.note


@pytest.mark.parametrize("op", ["broadcast", "reduce", "send", "recv", "gather"])
def test_operations_that_let_members_leave_early_claim_no_waiting(op: str) -> None:
    found = collectives_of(Job({"0": (0, 1)}, lambda rank, step: [Compute(5 + 4 * rank), Meet("0", op=op)]).run())
    assert found.table["wait_ms"].null_count() == found.table.height


def one_step(*spans: tuple[int, float, float], op: str = "all_reduce", source: str = "kernel", **given: object) -> Run:
    """Calls (rank, start, duration) in ms, one per 100 ms step, of two ranks, five times."""
    builder = RunBuilder(world_size=2)
    for step in range(5):
        for rank, start, length in spans:
            builder.rank(rank).step(step, 100 * step, 99).launch_kernel("gemm", 100 * step, 100 * step, 5)
            builder.collective(op, 100 * step + start, length, group_size=2, source=source, **given)  # type: ignore[arg-type]
    run = builder.build()
    group = TABLES["groups"].conform(pl.DataFrame([{"group": "0", "size": 2, "ranks": [0, 1]}]))
    return dataclasses.replace(run, tables={**run.tables, "groups": group})


def test_calls_that_never_overlap_are_not_believed() -> None:
    found = collectives_of(one_step((0, 10, 3), (0, 60, 3), (1, 50, 3), (1, 58, 3)))
    assert not found.table["matched"].any()
    assert "not inside at the same time" in found.note


def test_unequal_all_to_all_is_split_by_aligned_starts() -> None:
    builder = RunBuilder(world_size=2)
    for step in range(6):
        for rank in (0, 1):
            builder.rank(rank).step(step, 100 * step, 99)
            builder.collective("all_reduce", 100 * step + 40, 2, group_size=2)
            start, length = ((10, 30.0), (18, 10.0))[rank]
            builder.collective("all_to_all", 100 * step + start, length, group_size=2, bytes_in=MIB * (1 + 2 * rank))
    run = builder.build()
    found = collectives_of(run).table.filter(pl.col("op") == "all_to_all")
    assert found.filter(pl.col("rank") == 0)["wait_ms"].unique().to_list() == pytest.approx([8.0])
    assert found.filter(pl.col("rank") == 0)["transfer_ms"].unique().to_list() == pytest.approx([22.0])
    assert found.filter(pl.col("rank") == 1)["wait_ms"].unique().to_list() == pytest.approx([0.0])


def test_spans_that_only_enqueue_are_no_communication_time() -> None:
    run = one_step((0, 10, 0.05), (1, 30, 0.05), source="host", name="nccl:all_reduce")
    assert match(run, find_steps(run), activity(run)) is None


def test_gloo_spans_are_real_durations() -> None:
    found = collectives_of(one_step((0, 10, 22), (1, 30, 2), source="host"))
    by_rank = found.table.group_by("rank").agg(pl.col("wait_ms").mean()).sort("rank")
    assert by_rank["wait_ms"].to_list() == pytest.approx([20.0, 0.0])
    assert not found.timed_on_device


def test_per_step_figures_are_of_a_rank_that_takes_part() -> None:
    def program(rank: int, step: int) -> list[Compute | Meet]:
        tensor = [Meet("tp", transfer_ms=0.5), Meet("tp", transfer_ms=0.5)] if rank < 2 else []
        return [Compute(10), *tensor, Meet("0", bytes=100_000_000, transfer_ms=2.0)]

    found = collectives_of(Job({"tp": (0, 1), **WORLD}, program).run())
    rows = {row["group"]: row for row in found.summary.iter_rows(named=True)}
    assert (rows["tp"]["count_per_step"], rows["0"]["count_per_step"]) == (2.0, 1.0)
    assert rows["tp"]["transfer_ms"] == pytest.approx(1.0)
    assert rows["0"]["algbw_gbps"] == pytest.approx(50.0)
    assert rows["0"]["busbw_gbps"] == pytest.approx(75.0)


def test_bandwidth_needs_all_members() -> None:
    found = collectives_of(Job(WORLD, late_two, traced=(0, 1)).run())
    assert found.matched_ranks == 2
    assert found.summary["algbw_gbps"].to_list() == [None]


def exposure(builder: RunBuilder) -> Collectives:
    run = builder.step(0, 0, 100).build()
    found = match(run, every_step_steady(run), activity(run))
    assert found is not None
    return found


def test_communication_under_compute_is_hidden_and_the_rest_exposed() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 10, 30).collective("all_reduce", 30, 20)
    found = exposure(builder)
    assert (found.comm_ms, found.exposed_ms, found.overlapped_ms) == pytest.approx((20.0, 10.0, 10.0))
    assert found.overlap_share == pytest.approx(0.5)
    assert found.table["exposed_ms"].to_list() == pytest.approx([10.0])


def test_two_streams_at_once_count_once() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10)
    builder.collective("all_reduce", 10, 20, stream=20).collective("all_reduce", 15, 20, stream=21, group="1")
    assert exposure(builder).comm_ms == pytest.approx(25.0)


def test_communication_blocks_when_compute_follows_at_once() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).collective("all_reduce", 10, 20)
    assert exposure(builder.launch_kernel("gemm", 1, 30.02, 10)).blocking_ms == pytest.approx(20.0)


def test_communication_does_not_block_when_the_host_was_late_anyway() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).collective("all_reduce", 10, 20)
    assert exposure(builder.launch_kernel("gemm", 60, 60, 10)).blocking_ms == 0.0


def test_communication_does_not_block_when_compute_starts_beside_it() -> None:
    builder = RunBuilder().launch_kernel("gemm", 0, 0, 10).collective("all_reduce", 10, 20)
    assert exposure(builder.launch_kernel("gemm", 1, 20, 30)).blocking_ms == 0.0


def test_no_calls_no_family() -> None:
    run = RunBuilder().step(0, 0, 100).launch_kernel("gemm", 0, 10, 30).build()
    assert match(run, find_steps(run), activity(run)) is None
