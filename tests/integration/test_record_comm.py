"""Every collective of a real job is recorded once, with the right size, group and step: plain calls, DDP, FSDP2."""

from __future__ import annotations

import subprocess
from pathlib import Path

import polars as pl
import pytest

from ddiag.api import load
from ddiag.capture.hooks.sampling import FIRST_STEPS
from ddiag.capture.native.build import CACHE_VARIABLE
from ddiag.schema.phases import Flag, Kind, Mark, Op, Phase, State, Unit
from tests.integration.comm import (
    BEST,
    TIERS,
    agrees_where_it_looked,
    as_torch_logs,
    increasing,
    labels,
    reduces_each_gradient,
    seen_by,
)
from tests.integration.recording import Recording, having, record
from tests.shared import REPOSITORY, other_python

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module", params=TIERS)
def zoo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("zoo"), "zoo", tier=request.param)


def test_every_kind_of_call_is_recorded_in_order(zoo: Recording) -> None:
    for rank in zoo.ranks:
        assert len(rank.true_calls) == 3 * rank.steps[1].comm_count > 0
        assert rank.calls == rank.true_calls
        assert rank.peers == rank.truth["peers"]
    assert zoo.errors == []


def test_groups_are_told_with_their_global_ranks(zoo: Recording) -> None:
    for rank in zoo.ranks:
        groups = {(fact["desc"], tuple(fact["ranks"])) for fact in rank.facts_of("group")}
        own = {("even", (0,))} if rank.files.rank == 0 else {("odd", (1,)), ("upper", (1,))}
        assert groups == {("default_pg", (0, 1)), *own}
        assert all(fact["backend"] == "gloo" for fact in rank.facts_of("group"))


def test_what_the_host_waited_for_is_over(zoo: Recording) -> None:
    for rank in zoo.ranks:
        synchronous = [one for one in rank.collectives if not one.flags & Flag.ASYNC]
        assert {one.state for one in synchronous} == {State.DONE}
        assert all(one.end_ns > one.enqueue_ns for one in synchronous)
        unknown = [one for one in rank.collectives if one.state == State.ISSUED]
        assert all(one.flags & Flag.END_UNKNOWN for one in unknown), "what has no end says so"


def test_gloo_does_not_tell_when_these_end(zoo: Recording) -> None:
    """Their end is when somebody waited; that of all others is the real one."""
    waited = {Op(one.op) for one in having(zoo.ranks[0].collectives, Flag.END_IS_WAIT)}
    assert waited == {Op.REDUCE_SCATTER, Op.SEND, Op.RECV}


def test_the_async_call_and_its_type(zoo: Recording) -> None:
    for rank in zoo.ranks:
        found = [one for one in having(rank.collectives, Flag.ASYNC) if one.op == Op.ALL_REDUCE]
        assert [rank.dtype(one) for one in found] == ["bfloat16"] * 3


def test_waiting_costs_time_in_the_steps(zoo: Recording) -> None:
    for rank in zoo.ranks:
        waits = [one for one in rank.records if one.kind == Kind.COLLECTIVE and one.op == Op.WAIT and one.step == 1]
        step = rank.steps[1]
        assert waits
        assert 0 < step.comm_wait_ns <= step.end_ns - step.start_ns
        true = [one for one in rank.true_calls if one.step == 1]
        assert step.comm_count == len(true)
        assert step.comm_bytes == sum(one.bytes_in for one in true)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("tier", TIERS)
def test_groups_of_several_ranks(tmp_path: Path, tier: str) -> None:
    """Overlapping ones, without rank 0, two at once: what c10d numbers inside a group is told in global ranks."""
    recording = record(tmp_path, "zoo", tier=tier, ranks=4)
    table = load([str(recording.run)]).table("collectives")
    for rank in recording.ranks:
        odd, number = divmod(rank.files.rank, 2)[1], rank.files.rank
        groups = {(fact["desc"], tuple(fact["ranks"])) for fact in rank.facts_of("group")}
        own = {("odd", (1, 3)) if odd else ("even", (0, 2))} | ({("upper", (1, 2, 3))} if number else set())
        assert groups == {("default_pg", (0, 1, 2, 3)), *own}
        assert rank.calls == rank.true_calls
        assert rank.peers == rank.truth["peers"]
        told = table.filter(pl.col("rank") == number).sort("enqueue_ns")["peer"].fill_null(-1).to_list()
        assert told == rank.truth["peers"]
        assert tier == "dispatch" or increasing(rank)
    assert recording.errors == []


OTHERS = [(".venv-torch214", "native"), (".venv-torch214", "hooks"), (".venv-torch214", "dispatch")]
OTHERS += [(".venv-torch24", "dispatch")]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("environment", "tier"), OTHERS)
def test_the_newest_and_the_oldest_torch(tmp_path: Path, environment: str, tier: str) -> None:
    python = other_python(environment)
    if tier == "native":
        subprocess.run([python, "-m", "ddiag.capture.native", "build", "--if-missing"], cwd=REPOSITORY, check=True)
    recording = record(tmp_path / "zoo", "zoo", tier=tier, python=str(python))
    for rank in recording.ranks:
        assert rank.tier == tier
        assert rank.calls == seen_by(rank, tier)
        assert len(rank.true_calls) - len(rank.calls) == (3 if tier == "hooks" else 0)
        assert tier == "dispatch" or increasing(rank)
    assert recording.errors == []
    recording = record(tmp_path / "ddp", "ddp", "2", "no_sync", tier=tier, python=str(python))
    for rank in recording.ranks:
        assert rank.tier == tier
        assert reduces_each_gradient(rank, times=1)
        # Torch 2.4 has no log of what gloo does.
        assert bool(rank.true_calls) == (environment != ".venv-torch24")
        assert not rank.true_calls or rank.calls == rank.true_calls
        for step in (1, 2, 3):
            reduced = [label for op, label in labels(rank, step) if op == "all_reduce"]
            assert reduced == ["ddp0/bucket0", "ddp0/bucket1"]
    assert recording.errors == []


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("environment", "tier"), [(".venv", "dispatch"), (".venv-torch214", "hooks"), (".venv-torch24", "dispatch")]
)
def test_what_each_torch_gets_by_default(tmp_path: Path, environment: str, tier: str) -> None:
    """Where nobody has built the native kernel; with it, the tier is native (the next test)."""
    python = str(other_python(environment))
    nothing_built = {CACHE_VARIABLE: str(tmp_path / "cache")}
    recording = record(tmp_path, "ddp", "1", "sync", python=python, environment=nothing_built)
    assert [rank.tier for rank in recording.ranks] == [tier, tier]


@pytest.mark.long
@pytest.mark.skipif(BEST != "native", reason="the native kernel is not built for this torch")
def test_a_native_kernel_that_was_built_is_the_default(tmp_path: Path) -> None:
    recording = record(tmp_path, "ddp", "1", "sync")
    assert [rank.tier for rank in recording.ranks] == ["native", "native"]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("environment", "tier"), [(".venv", "dispatch"), (".venv-torch214", "hooks")])
def test_steps_that_a_tier_samples_are_whole(tmp_path: Path, environment: str, tier: str) -> None:
    """After the first steps a dear tier looks at a share of them, the ranks at the same ones."""
    python = str(other_python(environment))
    recording = record(tmp_path, "ddp", "1", "sync", "200", tier=tier, python=python)
    looked = [agrees_where_it_looked(rank) for rank in recording.ranks]
    both = set.intersection(*looked)
    # How many steps a rank leaves out changes as it goes on; those of the more careful one are looked at by both.
    assert 2 * len(both - set(range(FIRST_STEPS))) >= min(map(len, looked)) - FIRST_STEPS > 0
    for rank, steps in zip(recording.ranks, looked, strict=True):
        assert set(range(FIRST_STEPS)) < steps < set(range(200))
        assert len(rank.steps) == 200
        first_left_out = min(set(range(200)) - steps)
        assert all(one.flags & Flag.SAMPLED for one in rank.collectives if one.step > first_left_out)
    assert recording.errors == []


@pytest.mark.long
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("passes", "how"), [("1", "sync"), ("3", "sync"), ("3", "no_sync")])
def test_ddp_with_and_without_no_sync(tmp_path: Path, tier: str, passes: str, how: str) -> None:
    recording = record(tmp_path, "ddp", passes, how, tier=tier)
    for rank in recording.ranks:
        assert rank.calls == rank.true_calls
        assert reduces_each_gradient(rank, times=int(passes) if how == "sync" else 1)
        marks = [one for one in rank.records if one.kind == Kind.MARK and one.op == Mark.NO_SYNC]
        assert len(marks) == (8 if how == "no_sync" else 0)
        assert [one.micro_steps for one in rank.steps] == [int(passes)] * 4
    assert recording.errors == []


@pytest.fixture(scope="module", params=[BEST])
def ddp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("ddp"), "ddp", "3", "no_sync", tier=request.param)


def test_the_reducer_calls_what_torch_logged(ddp: Recording) -> None:
    for rank in ddp.ranks:
        assert rank.calls == rank.true_calls
        assert ddp.errors == []


def test_gradients_go_once_per_step_in_buckets_that_add_up(ddp: Recording) -> None:
    """Three micro-batches, one synchronisation."""
    for rank in ddp.ranks:
        for step in range(1, 4):
            sent = [one for one in rank.collectives if one.step == step and one.op == Op.ALL_REDUCE]
            assert sum(one.bytes_in for one in sent) == rank.truth["bytes"]
            assert [rank.label(one) for one in sent] == ["ddp0/bucket0", "ddp0/bucket1"]
            assert {one.phase for one in sent} == {Phase.BACKWARD}
            assert {one.micro_step for one in sent} == {2}


def test_buckets_are_told_before_and_after_the_rebuild(ddp: Recording) -> None:
    for rank in ddp.ranks:
        before, after = rank.facts_of("ddp_buckets")
        assert (before["rebuilt"], len(before["sizes"])) == (False, 1)
        assert (after["rebuilt"], len(after["sizes"])) == (True, 2)
        assert sum(after["sizes"]) == sum(before["sizes"]) == rank.truth["bytes"]
        assert sorted(one for bucket in after["parameters"] for one in bucket) == list(range(12))
        (ddp_fact,) = rank.facts_of("ddp")
        assert ddp_fact["bucket_cap_mb"] == pytest.approx(0.1, rel=1e-3)
        assert ddp_fact["gradient_as_bucket_view"] is True
        assert ddp_fact["find_unused_parameters"] is False


def test_passes_without_synchronisation_are_marked(ddp: Recording) -> None:
    for rank in ddp.ranks:
        marks = [one for one in rank.records if one.kind == Kind.MARK and one.op == Mark.NO_SYNC]
        assert [one.step for one in marks] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert [one.micro_step for one in marks] == [0, 1] * 4


@pytest.mark.parametrize(
    "tier", [BEST, *([pytest.param("dispatch", marks=pytest.mark.long)] if BEST != "dispatch" else [])]
)
def test_fsdp2_units_name_what_they_gather_and_reduce(tmp_path: Path, tier: str) -> None:
    recording = record(tmp_path, "fsdp2", "layers", tier=tier)
    for rank in recording.ranks:
        assert as_torch_logs(rank.calls) == rank.true_calls
        forward = [("all_gather", f"fsdp/{at}") for at in range(4)]
        assert labels(rank, 1)[:4] == forward
        reduced = [label for op, label in labels(rank, 1) if op == "reduce_scatter"]
        assert reduced == [f"fsdp/{at}" for at in (3, 2, 1, 0)]
        units = [one for one in rank.records if one.kind == Kind.UNIT and one.step == 1]
        kinds = {Unit(one.op) for one in units}
        assert kinds == {Unit.UNSHARD, Unit.PREFETCH, Unit.WAIT_UNSHARD, Unit.RESHARD, Unit.REDUCE_GRAD}
        facts = {fact["name"]: fact for fact in rank.facts_of("fsdp_unit")}
        assert facts["0"]["parameters"] == ["0.up.weight", "0.up.bias", "0.down.weight", "0.down.bias"]
        assert facts["0"]["bytes"] == 2 * facts["0"]["sharded_bytes"]
    assert recording.errors == []
