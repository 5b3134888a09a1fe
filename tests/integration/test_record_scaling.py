"""Loss scales, skipped updates and norms of gradients, as scalers that are not torch's plain one keep them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddiag.schema.folder import find_processes
from ddiag.schema.phases import Kind, Mark
from ddiag.schema.steps import StepFlag, StepRecord
from tests.integration import launching
from tests.integration.deepspeed_ops import deepspeed_environment, python_with
from tests.integration.recording import JOBS, RankRecording, record
from tests.shared import REPOSITORY

pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
SKIPPED = [False, False, False, True, False, False]


def flagged(steps: list[StepRecord], flag: StepFlag) -> list[bool]:
    return [bool(step.flags & flag) for step in steps]


def marked(rank: RankRecording, mark: Mark) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in rank.records if one.kind == Kind.MARK and one.op == mark]


@pytest.mark.parametrize("kind", ["right", "clip_first"])
def test_the_scaler_of_fsdp1(tmp_path: Path, kind: str) -> None:
    recording = record(tmp_path, "scaled_fsdp1", kind)
    assert recording.errors == []
    check_fsdp1(recording.ranks, clips_first=kind == "clip_first")


def test_fsdp1_in_a_script_that_records_itself_once_all_is_imported(tmp_path: Path) -> None:
    variables = {name: value for name, value in launching.environment(tmp_path).items() if name != "DDIAG_RUN"}
    variables["PYTHONPATH"] = str(REPOSITORY)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = launching.execute([*start, str(JOBS / "scaled_fsdp1.py"), str(tmp_path), "late"], variables)
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert launching.errors(run) == ""
    told = [json.loads((tmp_path / f"rank{number}.json").read_text()) for number in range(2)]
    ranks = tuple(RankRecording(files, one) for files, one in zip(find_processes(run), told, strict=True))
    check_fsdp1(ranks, clips_first=False)
    for rank in ranks:
        units = [one for one in rank.records if one.kind == Kind.UNIT]
        assert {one.step for one in units} == set(range(6))
        assert any((rank.label(one) or "").startswith("fsdp") for one in rank.collectives)


def check_fsdp1(ranks: Sequence[RankRecording], *, clips_first: bool) -> None:
    assert len(ranks) == 2
    for rank in ranks:
        steps = rank.steps
        assert flagged(steps, StepFlag.OPTIMIZER_SKIPPED) == SKIPPED
        assert [step.loss_scale for step in steps] == [1024.0] * 4 + [512.0] * 2
        assert [value for _, value in marked(rank, Mark.LOSS_SCALE)] == [1024.0, 512.0]
        assert [step.grad_norm for step in steps] == pytest.approx(rank.truth["norms"], nan_ok=True)
        assert flagged(steps, StepFlag.CLIP_BEFORE_UNSCALE) == [clips_first] * 6
        assert [step for step, _ in marked(rank, Mark.UNSCALE)] == list(range(6))


@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeeds_own_scale_and_norm(tmp_path: Path, stage: int) -> None:
    python = python_with("deepspeed")
    variables = deepspeed_environment(python)
    recording = record(tmp_path, "scaled_zero", str(stage), python=python, environment=variables, timeout_s=600)
    assert recording.errors == []
    assert len(recording.ranks) == 2
    for rank in recording.ranks:
        steps, truth = rank.steps, rank.truth
        assert truth["skipped"] == 1
        assert flagged(steps, StepFlag.OPTIMIZER_SKIPPED) == SKIPPED
        assert [step.loss_scale for step in steps] == truth["scales"] == [256.0] * 4 + [128.0] * 2
        assert marked(rank, Mark.LOSS_SCALE) == [(3, 128.0)]
        assert [step.grad_norm for step in steps] == pytest.approx(truth["norms"])
        assert all(norm > 0 for norm in truth["norms"])
