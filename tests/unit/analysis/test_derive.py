"""All families of a run at once, and who took part in it."""

from __future__ import annotations

import pytest

from ddiag.analysis import derive
from ddiag.errors import UsageError
from ddiag.model.signals import HostLaunch, InputWait, JobFacts, LateRanks, StepBudget, SyncPoints
from tests.builders import RunBuilder


def two_ranks() -> RunBuilder:
    builder = RunBuilder(world_size=2)
    for rank in range(2):
        builder.rank(rank)
        for k in range(4):
            at = 100 * k
            builder.step(k, at, 100).loader(at, 10).launch_kernel("gemm", at + 11, at + 12, 60)
            arrives = 72 if rank == 0 else 80
            builder.collective("all_reduce", at + arrives, 90 - arrives, enqueue_ms=at + 12, group_size=2)
            builder.launch_kernel("adam", at + 13, at + 90, 10)
    return builder


def test_a_two_rank_run_gives_the_families_its_evidence_holds() -> None:
    signals = derive(two_ranks().build())
    for family in (JobFacts, StepBudget, InputWait, HostLaunch, SyncPoints, LateRanks):
        assert signals.has(family), family
    budget = signals.get(StepBudget)
    assert budget is not None
    assert budget.mean("comm_wait_ms", rank=0) == pytest.approx(8)
    assert budget.mean("comm_wait_ms", rank=1) == pytest.approx(0)
    assert budget.mean("input_ms") == pytest.approx(10)


def test_chosen_steps_are_the_steady_ones() -> None:
    budget = derive(two_ranks().build(), steps=(1, 2)).get(StepBudget)
    assert budget is not None
    assert budget.n_steps == 2
    with pytest.raises(UsageError, match="0 to 3"):
        derive(two_ranks().build(), steps=(7, 9))


def test_facts_say_who_took_part() -> None:
    facts = derive(two_ranks().build()).get(JobFacts)
    assert facts == JobFacts(
        ranks=(0, 1),
        world_size=2,
        device_kind="cuda",
        hosts=("host0",),
        frameworks=("pytorch",),
        host_of={0: "host0", 1: "host0"},
    )


def test_an_empty_run_has_facts_only() -> None:
    signals = derive(RunBuilder().build())
    assert list(signals.families) == [JobFacts]
