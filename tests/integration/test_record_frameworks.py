"""Lightning, accelerate and Hugging Face's Trainer: steps, accumulation and gradients as they themselves count them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddiag.schema.phases import Op, Phase
from tests.integration.comm import BEST
from tests.integration.recording import record
from tests.shared import other_python

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("module", "job"),
    [("lightning", "lightning_ddp"), ("accelerate", "accelerate_ddp"), ("transformers", "trainer_ddp")],
)
def test_steps_and_gradients(tmp_path: Path, module: str, job: str) -> None:
    python = other_python(".venv-frameworks")
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=300, check=False)
    if found.returncode != 0:
        pytest.skip(f"{module} cannot be imported")
    recording = record(tmp_path, job, tier=BEST, python=str(python), timeout_s=400)
    assert [rank.files.rank for rank in recording.ranks] == [0, 1]
    for rank in recording.ranks:
        truth = rank.truth
        assert len(rank.steps) == truth["steps"] == 3
        assert [step.micro_steps for step in rank.steps] == [truth["micro"]] * 3
        for step in range(3):
            sent = [one for one in rank.collectives if one.step == step and one.phase == Phase.BACKWARD]
            assert {Op(one.op) for one in sent} == {Op.ALL_REDUCE}
            gradients = [one for one in sent if rank.label(one) == "ddp0/bucket0"]
            assert sum(one.bytes_in for one in gradients) == truth["bytes"], "once per step: accumulation does not send"
            unused = [rank.label(one) for one in sent if one not in gradients]
            assert unused == (["ddp0/unused"] if rank.facts_of("ddp")[0]["find_unused_parameters"] else [])
        assert len(rank.facts_of("ddp")) == 1
    assert recording.errors == []
