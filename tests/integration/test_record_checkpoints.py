"""Saving is a phase of the step in which the training thread does it, however it is done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddiag.schema.phases import Kind, Phase
from ddiag.schema.steps import StepFlag
from tests.integration.comm import TIERS
from tests.integration.recording import record
from tests.shared import other_python

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
HERE, FRAMEWORKS = sys.executable, ".venv-frameworks"


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("environment", ["", FRAMEWORKS])
def test_every_way_to_save_is_seen(tmp_path: Path, environment: str, tier: str) -> None:
    """``torch.save``, a distributed checkpoint, one in the background, and (with the frameworks) safetensors."""
    python = str(other_python(environment)) if environment else HERE
    (tmp_path / "saved").mkdir()
    recording = record(tmp_path, "checkpoints", str(tmp_path / "saved"), tier=tier, python=python, timeout_s=250)
    assert recording.errors == []
    assert len(recording.ranks) == 2
    for rank in recording.ranks:
        saved = rank.truth["saved"]
        assert saved == ([2, 4, 6, 8] if environment else [2, 4, 6])
        assert [step.step for step in rank.steps if step.flags & StepFlag.CHECKPOINT] == saved
        assert all((step.phase_ns[Phase.CHECKPOINT] > 0) == (step.step in saved) for step in rank.steps)
        marks = [one for one in rank.records if one.kind == Kind.PHASE and one.op == Phase.CHECKPOINT]
        (training,) = {one.thread for one in rank.records if one.kind == Kind.PHASE and one.op == Phase.OPTIMIZER}
        assert [one.step for one in marks if one.thread == training] == saved, "saving may save in turn"
