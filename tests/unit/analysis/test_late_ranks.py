"""Whom waiting is blamed on, why that rank was late, and when nobody is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.collectives import match
from ddiag.analysis.late_ranks import late_ranks
from ddiag.model.signals import LateRanks
from tests.unit.analysis.simulated import Action, Compute, Idle, Job, Load, Meet, every_step_steady, late_ranks_of

FOUR = {"0": (0, 1, 2, 3)}
TP_DP = {"tp@0": (0, 1), "tp@1": (2, 3), "tp@2": (4, 5), "tp@3": (6, 7), "dp@0": (0, 2, 4, 6), "dp@1": (1, 3, 5, 7)}


def row(found: LateRanks, rank: int) -> dict[str, Any]:
    return next(line for line in found.table.iter_rows(named=True) if line["rank"] == rank)


def jitter(rank: int, step: int) -> float:
    """Some tenths of a millisecond, different for every rank and step, the same on every run."""
    return float(np.random.default_rng(rank * 1000 + step).uniform(0, 0.4))


def late(*extra: Action, rank: int = 2) -> Job:
    """Four data-parallel ranks; *rank* does *extra* in every step."""

    def program(who: int, step: int) -> list[Action]:
        more = list(extra) if who == rank else []
        return [*more, Compute(20 + jitter(who, step)), Meet("0", transfer_ms=2), Compute(5), Meet("0", transfer_ms=2)]

    return Job(FOUR, program)


def test_the_late_rank_is_named_with_the_waiting_it_causes() -> None:
    found = late_ranks_of(late(Compute(10)).run())
    assert found.persistent_rank == 2
    mine = row(found, 2)
    assert mine["last_count"] >= 6
    assert mine["collectives"] == 12
    assert mine["blame_ms"] == pytest.approx(6 * 3 * 10, rel=0.05)
    assert mine["blame_share"] > 0.95
    assert mine["steps_last"] == 1.0
    assert mine["p_value"] < 0.001
    assert mine["avoidable_ms"] == pytest.approx(mine["blame_ms"], rel=0.1)
    assert not found.rotating
    assert found.wait_ms_per_step == pytest.approx(7.5, rel=0.1)


@pytest.mark.parametrize(
    ("extra", "cause", "figure"),
    [
        (Compute(10, "another_kernel"), "compute", "compute_ms"),
        (Load(10), "input", "input_ms"),
        (Idle(10), "host", "host_ms"),
    ],
)
def test_the_cause_is_what_the_rank_did_more_of(extra: Action, cause: str, figure: str) -> None:
    found = late_ranks_of(late(extra).run())
    assert found.persistent_rank == 2
    assert row(found, 2)["cause"] == cause
    assert row(found, 2)[figure] == pytest.approx(10, abs=0.5)


def test_the_same_kernels_slower_is_the_device() -> None:
    def program(rank: int, step: int) -> list[Action]:
        slow = 1.3 if rank == 1 else 1.0
        return [*(Compute(5 * slow, name) for name in ("gemm", "norm", "attention")), Meet("0")]

    mine = row(late_ranks_of(Job(FOUR, program).run()), 1)
    assert mine["kernel_slowdown"] == pytest.approx(1.3)
    assert mine["cause"] == "device"


def test_more_of_the_same_kernels_is_not_the_device() -> None:
    def program(rank: int, step: int) -> list[Action]:
        return [*(Compute(2, "gemm") for _ in range(9 if rank == 1 else 6)), Meet("0")]

    mine = row(late_ranks_of(Job(FOUR, program).run()), 1)
    assert mine["kernel_slowdown"] is None
    assert mine["cause"] == "compute"


def test_balanced_ranks_name_nobody() -> None:
    def program(rank: int, step: int) -> list[Action]:
        return [Compute(50 + jitter(rank, step)), Meet("0")]

    found = late_ranks_of(Job(FOUR, program, steps=10).run())
    assert found.persistent_rank is None
    assert not found.rotating


def test_a_constant_but_negligible_lateness_names_nobody() -> None:
    found = late_ranks_of(late(Compute(0.3, "extra")).run())
    assert found.wait_share < 0.01
    assert found.persistent_rank is None


def test_a_single_pause_does_not_make_a_late_rank() -> None:
    def program(rank: int, step: int) -> list[Action]:
        pause = [Idle(80)] if (rank, step) == (3, 4) else []
        return [*pause, Compute(20 + jitter(rank, step)), Meet("0")]

    found = late_ranks_of(Job(FOUR, program, steps=10).run())
    assert row(found, 3)["blame_share"] > 0.9
    assert found.persistent_rank is None


def test_a_late_rank_that_changes_is_rotating() -> None:
    def program(rank: int, step: int) -> list[Action]:
        return [Compute(20 + (10 if rank == (step * 3) % 4 else 0) + jitter(rank, step)), Meet("0")]

    found = late_ranks_of(Job(FOUR, program, steps=12).run())
    assert found.persistent_rank is None
    assert found.rotating
    assert found.note == ""


def test_a_slow_host_is_neither_one_rank_nor_rotating() -> None:
    ranks = tuple(range(8))

    def program(rank: int, step: int) -> list[Action]:
        return [Compute(20 + (10 if rank >= 4 else 0) + jitter(rank, step)), Meet("0")]

    found = late_ranks_of(Job({"0": ranks}, program, steps=12).run())
    assert found.persistent_rank is None
    assert not found.rotating
    assert found.late_together == (4, 5, 6, 7)


def tensor_and_data_parallel(slow: int, *, before_data: float = 0.0) -> Job:
    """Pairs share each layer; four replicas reduce gradients. Rank *slow* computes 4 ms more per layer."""

    def program(rank: int, step: int) -> list[Action]:
        ms = 5 + (4 if rank == slow else 0) + jitter(rank, step) / 10
        pair = f"tp@{rank // 2}"
        own = [Compute(before_data)] if rank == 7 else []
        layers = [action for _ in range(3) for action in (Compute(ms), Meet(pair, transfer_ms=0.5))]
        return [*layers, *own, Meet(f"dp@{rank % 2}", transfer_ms=3)]

    return Job(TP_DP, program)


def test_blame_flows_through_groups_to_the_rank_that_was_late_of_its_own_accord() -> None:
    found = late_ranks_of(tensor_and_data_parallel(slow=2).run())
    assert found.persistent_rank == 2
    # Rank 3 came last in its data-parallel group as often as rank 2, but only because rank 2 had held it up.
    assert row(found, 3)["blame_share"] < 0.02
    assert row(found, 2)["blame_share"] > 0.95
    assert row(found, 2)["cause"] == "device"


def test_what_a_victim_adds_itself_stays_with_it() -> None:
    found = late_ranks_of(tensor_and_data_parallel(slow=2, before_data=20).run())
    # Rank 7 spends 20 ms between the two kinds of groups; the replicas of rank 2 are 12 ms late, which hides behind it
    # in group dp@1 but not in dp@0.
    assert row(found, 7)["blame_ms"] > row(found, 2)["blame_ms"] * 0.5
    assert row(found, 3)["blame_share"] < 0.02


def test_unsynchronised_clocks_change_nothing() -> None:
    job = tensor_and_data_parallel(slow=5)
    job.clock_ms = {rank: 13.0 * rank for rank in range(8)}
    assert late_ranks_of(job.run()).persistent_rank == 5


def test_one_rank_gives_no_family() -> None:
    job = late(Compute(10))
    job.traced = (2,)
    run = job.run()
    windows, acts = every_step_steady(run), activity(run)
    assert late_ranks(run, windows, acts, match(run, windows, acts)) is None


def rank_three_of(traced: tuple[int, ...], varying: bool) -> LateRanks:
    """Rank 3 is late, by the same in every step or not; rank 1 a little."""

    def program(rank: int, step: int) -> list[Action]:
        extra = {3: 20.0 + (15 * (step % 4) if varying else 0), 1: 3.0}.get(rank, 0.0)
        return [Compute(20 + extra), Meet("0", transfer_ms=2)]

    return late_ranks_of(Job(FOUR, program, steps=12, traced=traced).run())


def test_with_traces_missing_the_late_rank_may_be_one_without() -> None:
    found = rank_three_of((0, 1, 2), varying=True)
    assert found.persistent_rank is None
    assert not found.rotating
    assert "3 of 4 members have a trace: the late rank may be one without" in found.note


def test_a_constant_lateness_of_a_rank_without_trace_shows_in_what_the_others_reach_elsewhere() -> None:
    def program(rank: int, step: int) -> list[Action]:
        extra = 20.0 if rank == 3 else 0.0
        return [Compute(20 + extra + jitter(rank, step)), Meet("0", bytes=3 << 20), Compute(5), Meet("0")]

    found = late_ranks_of(Job(FOUR, program, steps=8, traced=(0, 1, 2)).run())
    assert found.persistent_rank is None
    assert "may be one without" in found.note


def test_with_traces_missing_a_rank_that_only_transfers_was_last() -> None:
    found = rank_three_of((0, 2, 3), varying=True)
    assert found.persistent_rank == 3


def test_the_first_call_is_left_out_when_profilers_started_apart() -> None:
    def program(rank: int, step: int) -> list[Action]:
        start = [Idle(300)] if (rank, step) == (1, 0) else []
        return [*start, Compute(20 + jitter(rank, step)), Meet("0")]

    run = Job(FOUR, program).run()
    windows, acts = every_step_steady(run), activity(run)
    windows = type(windows)(windows.table, windows.source, windows.note, ())
    found = late_ranks(run, windows, acts, match(run, windows, acts))
    assert found is not None
    assert row(found, 1)["blame_share"] < 0.6
    assert "first call of a group was left out" in found.note


def test_simultaneous_arrivals_share_the_blame() -> None:
    def program(rank: int, step: int) -> list[Action]:
        return [Compute(30 if rank in (1, 2) else 20), Meet("0")]

    found = late_ranks_of(Job(FOUR, program).run())
    assert row(found, 1)["blame_share"] == pytest.approx(0.5)
    assert row(found, 2)["blame_share"] == pytest.approx(0.5)
    assert row(found, 1)["last_count"] == 0
    assert found.persistent_rank is None
    assert row(found, 1)["avoidable_ms"] == pytest.approx(0.0)


def test_with_two_ranks_half_of_the_blame_is_chance() -> None:
    def program(rank: int, step: int) -> list[Action]:
        return [Compute(20 + (6 if (step + rank) % 2 else 0) + (1 if rank else 0)), Meet("0")]

    assert late_ranks_of(Job({"0": (0, 1)}, program, steps=12).run()).persistent_rank is None


def test_few_steps_of_two_ranks_are_judged_by_amounts() -> None:
    def program(rank: int, step: int) -> list[Action]:
        return [Compute(20 + 9 * rank), Meet("0"), Compute(3 - 1.5 * rank), Meet("0")]

    found = late_ranks_of(Job({"0": (0, 1)}, program, steps=3).run())
    assert found.persistent_rank == 1
