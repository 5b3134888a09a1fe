"""DD130–DD133: why the loader's workers do not keep up, by what they did."""

from __future__ import annotations

from typing import Any

import pytest

from ddiag.rulekit import Abstain, Severity
from tests.rules.checking import check, evidence, findings, the_finding

RULES = ("DD130", "DD131", "DD132", "DD133")
STALLED = {"stall_ms": 60.0, "wait_ms": 60.0}
WAITED = {"input_ms": 60.0, "typical_ms": 55.0, "empty_share": 1.0}
BLOCKED = {**WAITED, "cpu_share": 0.1, "runnable_share": 0.1, "blocked_share": 0.9, "children_share": 0.1}
COMPUTING = {**WAITED, "cpu_share": 0.95, "runnable_share": 1.0, "blocked_share": 0.0, "children_share": 0.95}
SLEEPING = {**WAITED, "cpu_share": 0.03, "runnable_share": 0.02, "blocked_share": 0.0, "children_share": 0.03}
READY = {**SLEEPING, "empty_share": 0.0}
SEEN = {"DD130": BLOCKED, "DD131": COMPUTING, "DD132": READY, "DD133": SLEEPING}


def speaks(doing: dict[Any, Any], **overrides: Any) -> list[str]:
    """The rules that find something."""
    given = {"input_wait": STALLED, "loader_workers": {"doing": doing}, **overrides}
    return [rule for rule in RULES if findings(rule, **given)]


def abstains(doing: dict[Any, Any], **overrides: Any) -> bool:
    given = {"input_wait": STALLED, "loader_workers": {"doing": doing}, **overrides}
    return any(isinstance(one, Abstain) for one in check("DD133", **given))


@pytest.mark.parametrize("rule", RULES)
def test_each_state_has_its_rule_and_no_other_speaks(rule: str) -> None:
    assert speaks(SEEN[rule]) == [rule]
    found = the_finding(rule, input_wait=STALLED, loader_workers={"doing": SEEN[rule]})
    assert (found.culprits.ranks, found.severity) == ((), Severity.CRITICAL)
    assert "60.0 ms per step (30% of the step)" in found.title
    assert found.cost.ms_per_step == 60.0
    assert evidence(found, "loader workers").value == 4
    assert not abstains(SEEN[rule])


@pytest.mark.parametrize("rule", RULES)
def test_the_rank_whose_workers_they_are_is_named(rule: str) -> None:
    one = {"input_wait": {"stall_by_rank": {5: 60.0}}, "loader_workers": {"doing": {5: SEEN[rule]}}}
    found = the_finding(rule, **one)
    assert found.culprits.ranks == (5,)
    assert "of rank 5" in found.title


def test_ranks_with_different_workers_are_told_apart() -> None:
    both = {"doing": {1: BLOCKED, 6: COMPUTING}}
    stalls = {"stall_by_rank": {1: 60.0, 6: 50.0}}
    for rule, rank in (("DD130", 1), ("DD131", 6)):
        assert the_finding(rule, input_wait=stalls, loader_workers=both).culprits.ranks == (rank,)
    assert speaks(both["doing"], input_wait=stalls) == ["DD130", "DD131"]


@pytest.mark.parametrize("rule", RULES)
def test_workers_whose_batches_are_in_time_are_left_in_peace(rule: str) -> None:
    assert speaks(SEEN[rule], input_wait={"stall_ms": 5.0}) == []
    assert not abstains(SEEN[rule], input_wait={"stall_ms": 5.0})


@pytest.mark.parametrize(
    "unclear",
    [
        {**COMPUTING, "cpu_share": 0.5, "runnable_share": 0.5},
        {**BLOCKED, "blocked_share": 0.4, "runnable_share": 0.3},
        {**BLOCKED, "cpu_share": 0.4, "runnable_share": 0.6},
        {**SLEEPING, "children_share": 0.8},
        {**SLEEPING, "empty_share": 0.5},
        {**COMPUTING, "empty_share": None},
        {**COMPUTING, "samples": 2},
        {**COMPUTING, "cpu_share": None, "runnable_share": None, "blocked_share": None, "children_share": None},
        {**READY, "typical_ms": 10.0},
    ],
    ids=[
        *("half of the time", "some files", "files and a crowded CPU", "a child that computes for a worker"),
        *("a queue now empty, now not", "several asks per step", "too few looks", "workers without a name"),
        "one slow batch now and then",
    ],
)
def test_what_cannot_be_told_is_not_guessed(unclear: dict[str, Any]) -> None:
    assert speaks(unclear) == []
    assert abstains(unclear)


def test_workers_that_are_never_idle_are_late_though_some_batches_were_there() -> None:
    assert speaks({**COMPUTING, "empty_share": 0.5}) == ["DD131"]
    assert "DD131" not in speaks({**COMPUTING, "empty_share": 0.1})


def test_a_training_process_that_waits_for_a_cpu_is_not_said_to_be_busy_taking_batches() -> None:
    waiting = {"cpu_ms": dict.fromkeys(range(8), 40.0)}
    assert speaks(READY, host_load=waiting) == []
    assert abstains(READY, host_load=waiting)
    assert speaks(READY, host_load=None) == []
    assert speaks(READY, host_load={"runnable_per_cpu": 1.6}) == []
    assert speaks(READY, host_load={"runnable_per_cpu": 1.4}) == ["DD132"]


PEERS = [rank for rank in range(8) if rank != 5]


@pytest.mark.parametrize(
    ("more_ms", "peers_wait_ms", "says"),
    [(50.0, 55.0, True), (5.0, 55.0, False), (50.0, 100.0, False)],
    ids=["as much as it waits", "none", "but for other work"],
)
def test_on_a_crowded_host_a_rank_takes_batches_with_the_cpu_time_that_others_do_not_use(
    more_ms: float, peers_wait_ms: float, says: bool
) -> None:
    """The others wait for it in communication; where they wait longer than for its input, it does something else."""
    given = {
        "input_wait": {"stall_by_rank": {5: 60.0}},
        "host_load": {"runnable_per_cpu": 1.6, "cpu_ms": {**dict.fromkeys(PEERS, 100.0), 5: 100.0 + more_ms}},
        "step_budget": {"input_ms": {5: 60.0}, "comm_wait_ms": {5: 0.0, **dict.fromkeys(PEERS, peers_wait_ms)}},
    }
    assert speaks({5: READY}, **given) == (["DD132"] if says else [])
    assert abstains({5: READY}, **given) is not says


def test_idle_cpus_are_room_for_more_workers() -> None:
    found = the_finding("DD131", input_wait=STALLED, loader_workers={"doing": COMPUTING})
    assert "too few (4 per rank; 6 would keep up)" in found.title
    assert "num_workers=6" in found.fix[0]
    assert evidence(found, "idle CPUs").value == pytest.approx(0.7 * 128, abs=0.1)


def test_without_idle_cpus_the_transform_is_too_dear() -> None:
    found = the_finding(
        "DD131", input_wait=STALLED, loader_workers={"doing": COMPUTING}, host_load={"cpus": 36, "busy_share": 0.98}
    )
    assert "the transform is too dear" in found.title
    assert "cheaper" in found.fix[0]


def test_idle_cpus_for_some_of_the_workers_only_are_too_few() -> None:
    load = {"cpus": 40, "busy_share": 0.9}
    found = the_finding("DD131", input_wait=STALLED, loader_workers={"doing": COMPUTING}, host_load=load)
    assert "the transform is too dear" in found.title


@pytest.mark.parametrize(("busy", "says"), [(0.3, "get 30% of one, while others are idle"), (1.0, "get 30% of one:")])
def test_workers_kept_from_cpus_are_not_said_to_be_too_few(busy: float, says: str) -> None:
    kept = {**COMPUTING, "cpu_share": 0.3}
    found = the_finding(
        "DD131", input_wait=STALLED, loader_workers={"doing": kept}, host_load={"busy_share": busy, "cpus": 32}
    )
    assert says in found.title
    assert "too few (" not in found.title


def test_a_quota_makes_idle_cpus_of_no_use() -> None:
    load = {"busy_share": 0.3, "throttled_share": 0.4}
    found = the_finding("DD131", input_wait=STALLED, loader_workers={"doing": COMPUTING}, host_load=load)
    assert "while others are idle" in found.title
    assert "cpu.max" in found.fix[0]


def test_without_samples_of_the_host_nothing_is_said_of_its_cpus() -> None:
    found = the_finding("DD131", input_wait=STALLED, loader_workers={"doing": COMPUTING}, host_load=None)
    assert "compute all the time: training waits" in found.title
    assert "not known" in found.doubt
