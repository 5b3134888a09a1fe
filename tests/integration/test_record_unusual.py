"""What users do to communication beside calling it: hooks, threads, their own groups, inference mode.

Each job computes the same to the bit with the recorder in every tier, the recorder has no trouble, and it records what
it says it can see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddiag import api
from ddiag.schema.phases import Op, State
from tests.integration.comm import TIERS, labels
from tests.integration.recording import JOBS, Call, RankRecording, Recording, record
from tests.shared import other_python

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
NEWEST = ".venv-torch214"
ALL_TIERS = [*TIERS, "hooks"]
KEPT = ("losses", "sums", "parameters", "passed on")


def without(folder: Path, job: str, python: str = sys.executable) -> list[dict[str, Any]]:
    """What each rank of *job* writes about itself when nothing records it."""
    folder.mkdir()
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(JOBS / f"{job}.py")]
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(folder)], env=given, capture_output=True, text=True, timeout=160, check=False)
    assert done.returncode == 0, f"{job} without a recorder ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def both(folder: Path, job: str, tier: str) -> Recording:
    """The job recorded; what it computes is what it computes without a recorder."""
    python = {"python": str(other_python(NEWEST))} if tier == "hooks" else {}
    recording = record(folder / "ours", job, tier=tier, **python)
    bare = without(folder / "bare", job, **python)
    for rank, told in zip(recording.ranks, bare, strict=True):
        computed = {name: value for name, value in told.items() if name.endswith(KEPT)}
        assert computed
        assert {name: rank.truth[name] for name in computed} == computed
        assert rank.tier.removesuffix("-sampled") == tier
    assert recording.errors == []
    return recording


def of_steps(calls: list[Call], rank: RankRecording) -> list[Call]:
    """Those of steps that were looked at."""
    seen = {one.step for one in rank.collectives}
    return [one for one in calls if one.step in seen]


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_two_models_of_one_shape_are_told_apart(tmp_path: Path, tier: str) -> None:
    recording = both(tmp_path, "twins", tier)
    for rank in recording.ranks:
        assert rank.calls == of_steps(rank.true_calls, rank)
        looked_at = {one.step for one in rank.collectives} - {0, 1}
        assert looked_at
        for step in looked_at:  # torch tells of rebuilt buckets one pass later
            gradients = [label for op, label in labels(rank, step) if op == "all_reduce"]
            assert gradients == [f"ddp{twin}/bucket{at}" for twin in (0, 1) for at in range(len(gradients) // 2)], step
            assert len(gradients) >= 6


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_hooks_of_ddp(tmp_path: Path, tier: str) -> None:
    """Four modules with four steps each: halved by Python, halved by torch, PowerSGD from the third step on, own."""
    recording = both(tmp_path, "comm_hooks", tier)
    for rank in recording.ranks:
        assert rank.calls == of_steps(rank.true_calls, rank)
        assert len(rank.steps) == 16
        looked_at = {one.step for one in rank.collectives}
        names = [["ddp0"] * 4, ["ddp1"] * 4, ["ddp2"] * 2 + [None] * 2, ["ddp3"] * 4]
        for step, module in enumerate(name for four in names for name in four):
            if step % 4 == 1 or step not in looked_at:
                continue  # torch tells of rebuilt buckets one pass later
            gradients = [label for op, label in labels(rank, step) if op == "all_reduce"]
            buckets = 1 if step % 4 == 0 or module == "ddp2" else 2
            expected = [f"{module}/bucket{at}" for at in range(buckets)] if module else [None] * 3
            assert gradients == expected, step
        told = {(fact["index"], fact["comm_hook"]) for fact in rank.facts_of("ddp_buckets") if fact["rebuilt"]}
        assert {one.partition(".")[2] or one for _, one in told} >= {"fp16_compress_hook", "FP16_COMPRESS", "mean_of"}
        assert (2, "powerSGD_hook") in told


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_a_call_that_torch_refuses_is_over_and_failed(tmp_path: Path, tier: str) -> None:
    recording = both(tmp_path, "refused", tier)
    for rank in recording.ranks:
        assert rank.truth["sums"] == [201.0] * 4 + [1.0]
        for step in {one.step for one in rank.collectives}:
            states = [(Op(one.op), State(one.state)) for one in rank.collectives if one.step == step]
            worked = [(Op.ALL_REDUCE, State.DONE)] if step < 4 else []
            assert states == [*worked, (Op.ALL_GATHER, State.FAILED)], step


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_sparse_gradients_have_the_size_of_their_indices_and_values(tmp_path: Path, tier: str) -> None:
    recording = both(tmp_path, "sparse", tier)
    for rank in recording.ranks:
        for step in {one.step for one in rank.collectives}:
            reduced = [one.bytes_in for one in rank.collectives if (one.step, one.op) == (step, Op.ALL_REDUCE)]
            assert sorted(reduced) == [rank.truth["sparse"], rank.truth["dense"]], step


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_a_second_thread_that_communicates(tmp_path: Path, tier: str) -> None:
    recording = both(tmp_path, "threads", tier)
    for rank in recording.ranks:
        retired = rank.facts_of("tier_off")
        if tier == "dispatch":
            assert [(fact["tier"], fact["why"]) for fact in retired] == [
                ("dispatch", "collectives are issued by several threads")
            ]
            assert {one.step for one in rank.collectives} == {0}, "gone for good after the first step"
        else:
            assert retired == []
            assert {one.step for one in rank.collectives} == set(range(8)) or tier == "hooks"
        mine = rank.groups_named("second_thread")
        assert mine == (0, 1)
        for step in {one.step for one in rank.collectives}:
            found = [one for one in rank.collectives if one.step == step]
            assert sorted(one.bytes_in for one in found) == [40] * 5 + [200, 10_000]
            threads = {one.thread for one in found if one.bytes_in == 40}
            assert len(threads) == 1
            assert threads.isdisjoint({one.thread for one in found if one.bytes_in != 40})
            assert {rank.label(one) for one in found} == {None}


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_a_process_group_written_in_python(tmp_path: Path, tier: str) -> None:
    recording = both(tmp_path, "own_group", tier)
    for rank in recording.ranks:
        assert len(rank.truth["passed on"]) == 10
        assert len(rank.steps) == 5
        assert rank.calls == [], "its calls pass neither torch's dispatcher nor its hooks"
        (group,) = rank.facts_of("group")
        assert (group["backend"], group["ranks"], group["python"]) == ("counting", [0, 1], True)
        (ddp,) = rank.facts_of("ddp")
        assert ddp["group"] == group["name"]
    assert "calls of process groups written in Python" in " ".join(api.load([str(recording.run)]).coverage.notes)


@pytest.mark.parametrize("tier", ALL_TIERS)
def test_calls_under_inference_mode(tmp_path: Path, tier: str) -> None:
    """The dispatcher's keys above the backends are off there: what the tiers on them miss, they say."""
    recording = both(tmp_path, "inference", tier)
    for rank in recording.ranks:
        under = [one for one in rank.true_calls if one.bytes_in == 800]
        others = [one for one in rank.true_calls if one.bytes_in == 400]
        assert len(under) == len(others) == 4
        assert rank.calls == (rank.true_calls if tier == "hooks" else others)
        (fact,) = rank.facts_of("tier")
        assert ("calls under torch.inference_mode" in fact["blind"]) == (tier != "hooks")
        assert ("torch.inference_mode" in fact["sees"]) == (tier == "hooks")
