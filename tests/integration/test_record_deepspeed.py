"""DeepSpeed under the recorder: ZeRO stages, offloading, and steps that end where the engine says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.schema.phases import Copy, Kind, Op, Phase, State, Unit
from ddiag.schema.steps import StepFlag
from tests.integration.comm import BEST, as_torch_logs
from tests.integration.deepspeed_ops import deepspeed_environment, python_with
from tests.integration.recording import RankRecording, Recording, record

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
STEPS, PASSES, LAYERS = 3, 2, 5


def zero(folder: Path, stage: int, offload: str = "device", sums: str = "bf16") -> Recording:
    python = python_with("deepspeed")
    variables = deepspeed_environment(python)
    arguments = (str(stage), offload, str(STEPS), sums)
    return record(folder, "zero", *arguments, tier=BEST, python=python, environment=variables, timeout_s=1400)


def of_step(rank: RankRecording, step: int, op: Op) -> list[str | None]:
    return [rank.label(one) for one in rank.collectives if one.step == step and one.op == op]


def size(rank: RankRecording, step: int, op: Op, label: str) -> int:
    """Bytes that calls with labels beginning so were given."""
    calls = [one for one in rank.collectives if one.step == step and one.op == op]
    return sum(one.bytes_in for one in calls if (rank.label(one) or "").startswith(label))


def is_as_torch_and_the_engine_say(rank: RankRecording) -> bool:
    """Every call once, in torch's order, with its sizes, group and step; steps end where the engine's do."""
    assert rank.true_calls
    assert as_torch_logs(rank.calls) == rank.true_calls
    assert {one.group for one in rank.calls} == {(0, 1)}
    steps = rank.steps
    assert len(steps) == rank.truth["global_steps"] == STEPS
    assert all(one.flags & StepFlag.ENGINE_BOUNDARY for one in steps)
    assert [one.micro_steps for one in steps] == [PASSES] * STEPS
    return True


def copied(rank: RankRecording, copy: Copy) -> list[int]:
    """Bytes in each step."""
    records = [one for one in rank.records if one.kind == Kind.COPY and one.op == copy]
    assert all(one.state == State.DONE for one in records)
    return [sum(one.bytes_in for one in records if one.step == step) for step in range(STEPS)]


def updates_on_the_cpu(rank: RankRecording) -> list[int]:
    records = [one for one in rank.records if one.kind == Kind.COPY and one.op == Copy.CPU_OPTIMIZER]
    assert all(one.phase == Phase.OPTIMIZER for one in records)
    return [sum(one.step == step for one in records) for step in range(STEPS)]


@pytest.mark.parametrize("stage", [1, 2])
def test_buckets_of_stages_1_and_2(tmp_path: Path, stage: int) -> None:
    recording = zero(tmp_path, stage)
    for rank in recording.ranks:
        assert is_as_torch_and_the_engine_say(rank)
        passes = 1 if stage == 1 else PASSES
        elements = rank.truth["elements"]
        for step in range(STEPS):
            reduced = [one for one in of_step(rank, step, Op.ALL_REDUCE) if one and "bucket" in one]
            assert reduced == [f"zero/bucket{at}" for at in range(LAYERS)] * passes
            assert size(rank, step, Op.ALL_REDUCE, "zero/bucket") == passes * 2 * elements
            assert of_step(rank, step, Op.ALL_GATHER) == ["zero/step"]
            assert size(rank, step, Op.ALL_GATHER, "zero/step") == 2 * rank.truth["part"]
        assert rank.facts_of("deepspeed")[0]["zero_optimization_stage"] == stage
        assert not [one for one in rank.records if one.kind == Kind.COPY]
    assert recording.errors == []


@pytest.mark.parametrize("stage", [1, 2])
def test_offloading_sends_sums_of_the_models_type_to_the_host_and_back_in_every_reduction(
    tmp_path: Path, stage: int
) -> None:
    """Of whole parameters, also of one that lies in both ranks' parts; then its part in the type of the master.

    Stage 1 reduces once, in the last pass, and keeps no sums on the host.
    """
    recording = zero(tmp_path, stage, "offload")
    for rank in recording.ranks:
        assert is_as_torch_and_the_engine_say(rank)
        part, touched = rank.truth["part"], rank.truth["touched"]
        assert part < touched < rank.truth["elements"]
        kept, fetched = (PASSES, PASSES - 1) if stage == 2 else (0, 0)
        assert copied(rank, Copy.D2H) == [2 * touched * kept + 4 * part] * STEPS
        assert copied(rank, Copy.H2D) == [2 * touched * fetched + 2 * part] * STEPS
        assert updates_on_the_cpu(rank) == [rank.truth["sub_groups"]] * STEPS
        assert rank.facts_of("deepspeed")[0]["zero_offload_optimizer"]["device"] == "cpu"
    assert recording.errors == []


def test_offloading_sums_that_stay_on_the_device_sends_each_rank_its_part_once(tmp_path: Path) -> None:
    recording = zero(tmp_path, 2, "offload", "fp32")
    for rank in recording.ranks:
        assert is_as_torch_and_the_engine_say(rank)
        assert copied(rank, Copy.D2H) == [4 * rank.truth["part"]] * STEPS
        assert copied(rank, Copy.H2D) == [2 * rank.truth["part"]] * STEPS
        assert updates_on_the_cpu(rank) == [rank.truth["sub_groups"]] * STEPS
    assert recording.errors == []


@pytest.mark.parametrize("offload", ["device", "offload"])
def test_units_of_stage_3(tmp_path: Path, offload: str) -> None:
    recording = zero(tmp_path, 3, offload)
    for rank in recording.ranks:
        assert is_as_torch_and_the_engine_say(rank)
        gathered = set(of_step(rank, 0, Op.ALL_GATHER))
        assert {f"zero/{at}" for at in range(LAYERS)} <= gathered, "the first pass gathers layer by layer"
        assert of_step(rank, 2, Op.REDUCE_SCATTER) == [f"zero/bucket{at}" for at in range(LAYERS)] * PASSES
        assert size(rank, 2, Op.REDUCE_SCATTER, "zero/bucket") == PASSES * 2 * rank.truth["elements"]
        units = [one for one in rank.records if one.kind == Kind.UNIT and one.step == 2]
        assert {Unit.WAIT_UNSHARD, Unit.PREFETCH, Unit.RESHARD, Unit.REDUCE_GRAD} <= {Unit(one.op) for one in units}
        part = rank.truth["part"]
        if offload == "offload":
            # On a CPU "accelerator" the sums lie where the gradients do: only the first pass copies.
            assert copied(rank, Copy.D2H) == [(2 + 4) * part] * STEPS
            assert copied(rank, Copy.H2D) == [2 * part] * STEPS
            assert updates_on_the_cpu(rank) == [rank.truth["sub_groups"]] * STEPS
        else:
            assert not [one for one in rank.records if one.kind == Kind.COPY]
    assert recording.errors == []
