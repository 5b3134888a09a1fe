"""DeepSpeed under the recorder: ZeRO stages, offloading, and steps that end where the engine says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.schema.phases import Copy, Kind, Op, Phase, Unit
from ddiag.schema.steps import StepFlag
from tests.integration.comm import BEST
from tests.integration.deepspeed_ops import deepspeed_environment, python_with
from tests.integration.recording import RankRecording, Recording, record

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
STEPS = 3


def zero(folder: Path, stage: int, offload: str = "device") -> Recording:
    python = python_with("deepspeed")
    variables = deepspeed_environment(python)
    arguments = (str(stage), offload, str(STEPS))
    return record(folder, "zero", *arguments, tier=BEST, python=python, environment=variables, timeout_s=1400)


def of_step(rank: RankRecording, step: int, op: Op) -> list[str | None]:
    return [rank.label(one) for one in rank.collectives if one.step == step and one.op == op]


def has_the_engines_steps(rank: RankRecording) -> bool:
    steps = rank.steps
    assert len(steps) == rank.truth["global_steps"] == STEPS
    assert all(one.flags & StepFlag.ENGINE_BOUNDARY for one in steps)
    assert [one.micro_steps for one in steps] == [2] * STEPS
    return True


@pytest.mark.parametrize("stage", [1, 2])
def test_buckets_of_stages_1_and_2(tmp_path: Path, stage: int) -> None:
    recording = zero(tmp_path, stage)
    for rank in recording.ranks:
        assert has_the_engines_steps(rank)
        passes = 1 if stage == 1 else 2
        reduced = [one for one in of_step(rank, 1, Op.ALL_REDUCE) if one and "bucket" in one]
        assert reduced == [f"zero/bucket{at}" for at in range(4)] * passes
        assert of_step(rank, 0, Op.ALL_GATHER) == of_step(rank, 1, Op.ALL_GATHER) == ["zero/step"]
        assert rank.facts_of("deepspeed")[0]["zero_optimization_stage"] == stage
        assert not [one for one in rank.records if one.kind == Kind.COPY]
    assert recording.errors == []


def test_offloading_copies_gradients_and_steps_on_the_cpu(tmp_path: Path) -> None:
    recording = zero(tmp_path, 2, "offload")
    for rank in recording.ranks:
        assert has_the_engines_steps(rank)
        copies = [one for one in rank.records if one.kind == Kind.COPY and one.step == 1]
        stepped = [one for one in copies if one.op == Copy.CPU_OPTIMIZER]
        down = [one for one in copies if one.op == Copy.D2H]
        assert len(stepped) == 1
        assert stepped[0].phase == Phase.OPTIMIZER
        assert down
        assert all(one.bytes_in > 0 for one in down)
        assert rank.facts_of("deepspeed")[0]["zero_offload_optimizer"]["device"] == "cpu"
    assert recording.errors == []


@pytest.mark.parametrize("offload", ["device", "offload"])
def test_units_of_stage_3(tmp_path: Path, offload: str) -> None:
    recording = zero(tmp_path, 3, offload)
    for rank in recording.ranks:
        assert has_the_engines_steps(rank)
        gathered = set(of_step(rank, 0, Op.ALL_GATHER))
        assert {f"zero/{at}" for at in range(4)} <= gathered, "the first pass gathers layer by layer"
        assert of_step(rank, 2, Op.REDUCE_SCATTER) == [f"zero/bucket{at}" for at in range(4)] * 2
        units = [one for one in rank.records if one.kind == Kind.UNIT and one.step == 2]
        assert {Unit.WAIT_UNSHARD, Unit.PREFETCH, Unit.RESHARD, Unit.REDUCE_GRAD} <= {Unit(one.op) for one in units}
        on_cpu = [one for one in rank.records if one.kind == Kind.COPY and one.op == Copy.CPU_OPTIMIZER]
        assert bool(on_cpu) == (offload == "offload")
    assert recording.errors == []
