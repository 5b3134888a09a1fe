"""Steps and phases of real two-rank trainings equal what the training scripts counted themselves."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ddiag.schema.folder import ProcessFiles
from ddiag.schema.phases import Flag, Kind, Phase
from ddiag.schema.steps import StepFlag, StepRecord
from tests.integration import launching
from tests.integration.launching import phase_names, records, steps_of

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def _recorded(run: Path, loop: str) -> list[tuple[Any, ProcessFiles, list[StepRecord]]]:
    """(truth, files, steps) of both ranks, after what holds for every loop was checked."""
    done = launching.torchrun(run, "record_loops.py", str(run), loop)
    assert done.returncode == 0, done.stderr
    assert launching.errors(run) == ""
    assert done.stdout == ""
    found = launching.processes(run)
    assert sorted(found) == [0, 1]
    ranks = [(launching.truth(run, rank), found[rank], steps_of(found[rank])) for rank in (0, 1)]
    for truth, _files, steps in ranks:
        assert [step.step for step in steps] == list(range(len(truth["micro_steps"])))
        assert [step.micro_steps for step in steps] == truth["micro_steps"]
        assert all(sum(step.phase_ns) == step.end_ns - step.start_ns for step in steps)
        assert all(before.end_ns == after.start_ns for before, after in pairwise(steps))
    return ranks


def _counts(files: ProcessFiles) -> dict[str, int]:
    names = phase_names(files)
    return {name: names.count(name) for name in set(names)}


def test_a_plain_loop(tmp_path: Path) -> None:
    for _truth, files, _steps in _recorded(tmp_path, "plain"):
        assert _counts(files) == {"INPUT": 7, "ZERO_GRAD": 6, "FORWARD": 6, "BACKWARD": 6, "OPTIMIZER": 6}
        assert not any(record.flags & Flag.INFERRED for record in records(files, Kind.PHASE))
        per_step = [(record.step, Phase(record.op).name) for record in records(files, Kind.PHASE)]
        assert per_step[5:10] == [(1, name) for name in ("INPUT", "ZERO_GRAD", "FORWARD", "BACKWARD", "OPTIMIZER")]


def test_accumulation(tmp_path: Path) -> None:
    for _truth, files, steps in _recorded(tmp_path, "accumulation"):
        assert len(steps) == 4
        assert _counts(files) == {"INPUT": 13, "ZERO_GRAD": 4, "FORWARD": 12, "BACKWARD": 12, "OPTIMIZER": 4}


def test_two_optimizers(tmp_path: Path) -> None:
    for _truth, files, steps in _recorded(tmp_path, "two_optimizers"):
        assert len(steps) == 5
        assert all(step.flags & StepFlag.SEVERAL_OPTIMIZERS for step in steps)
        assert _counts(files)["OPTIMIZER"] == 10


def test_a_scaler_that_skips_steps(tmp_path: Path) -> None:
    for truth, _files, steps in _recorded(tmp_path, "scaler"):
        assert [bool(step.flags & StepFlag.OPTIMIZER_SKIPPED) for step in steps] == truth["skipped"]
        assert sum(truth["skipped"]) == 2
        assert [step.loss_scale for step in steps] == truth["loss_scale"]
        for step, norm in zip(steps, truth["grad_norm"], strict=True):
            assert step.grad_norm == pytest.approx(norm) or (math.isnan(norm) and math.isnan(step.grad_norm))


def test_a_manual_loop_without_a_loader(tmp_path: Path) -> None:
    for _truth, files, steps in _recorded(tmp_path, "manual"):
        assert _counts(files) == {"FORWARD": 5, "BACKWARD": 5, "OPTIMIZER": 5}
        assert all(step.phase_ns[Phase.OTHER] >= 10e6 for step in steps[1:])
        assert all(step.loader_workers == -1 for step in steps)


def test_evaluation_and_checkpoints_in_the_loop(tmp_path: Path) -> None:
    for truth, files, steps in _recorded(tmp_path, "evaluation"):
        counts = _counts(files)
        assert counts["EVALUATION"] == counts["CHECKPOINT"] == truth["evaluations"] == 3
        assert counts["FORWARD"] == 6
        # What happens after a step's end belongs to the next; the third evaluation has no step after it.
        assert [step.step for step in steps if step.flags & StepFlag.EVALUATION] == [2, 4]
        assert [step.step for step in steps if step.flags & StepFlag.CHECKPOINT] == [2, 4]


def test_fully_sharded_modules(tmp_path: Path) -> None:
    for _truth, files, _steps in _recorded(tmp_path, "fsdp2"):
        counts = _counts(files)
        assert (counts["FORWARD"], counts["BACKWARD"], counts["OPTIMIZER"]) == (4, 4, 4)
        assert not any(record.flags & Flag.INFERRED for record in records(files, Kind.PHASE))
