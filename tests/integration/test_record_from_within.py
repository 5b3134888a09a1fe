"""Lightning, the Hugging Face Trainer and accelerate with the launchers they bring, recorded from outside or inside.

Either way the recorder sees the steps and gradients that the framework counts, and changes no bit of the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ddiag.schema.folder import find_processes, read_manifest
from ddiag.schema.phases import Op, Phase
from tests.integration import launching
from tests.integration.deepspeed_ops import python_with
from tests.integration.launching import SCRIPTS, phase_names
from tests.integration.recording import RankRecording
from tests.shared import REPOSITORY

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0")
OWN: tuple[str, ...] = ()
"""The script starts the other ranks itself."""
RANKS = 2
Truth = list[dict[str, Any]]
_bare: dict[str, Truth] = {}
"""By framework: it does not matter who starts the ranks."""
python_of = cache(python_with)


def train(folder: Path, launcher: Sequence[str], framework: str, *more: str, **variables: str) -> Truth:
    """What each rank says of its training; *variables* switch the recorder on."""
    folder.mkdir(exist_ok=True)
    given = launching.environment(folder, CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
    del given["DDIAG_RUN"], given["PYTHONPATH"]
    command = [python_of(framework), *launcher, str(SCRIPTS / "record_frameworks.py"), str(folder), framework, *more]
    done = launching.execute(command, given | variables)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "ddiag" not in done.stderr
    return [launching.truth(folder, rank) for rank in range(RANKS)]


def as_without(folder: Path, launcher: tuple[str, ...], framework: str, truth: Truth) -> bool:
    """Steps, losses and parameters are those of the same training without a recorder."""
    if framework not in _bare:
        _bare[framework] = train(folder / "bare", launcher, framework)
    return [{**one, "pid": 0} for one in truth] == [{**one, "pid": 0} for one in _bare[framework]]


def recorded_all(run: Path, truth: Truth) -> list[RankRecording]:
    """What every rank left, checked against the framework's own count."""
    assert launching.errors(run) == ""
    ranks = [RankRecording(files, told) for files, told in zip(find_processes(run), truth, strict=True)]
    for number, rank in enumerate(ranks):
        assert (rank.files.rank, rank.files.pid) == (number, rank.truth["pid"])
        assert len(rank.steps) == rank.truth["steps"] > 0
        assert {step.micro_steps for step in rank.steps} == {rank.truth["micro_steps"]}
        sent = [one for one in rank.collectives if one.phase == Phase.BACKWARD]
        gradients = [one for one in sent if rank.label(one) == "ddp0/bucket0"]
        assert {one.bytes_in for one in gradients} == {rank.truth["bytes"]}
        assert [one.step for one in gradients] == list(range(rank.truth["steps"])), "accumulation does not send"
        (ddp,) = rank.facts_of("ddp")
        unused = len(gradients) if ddp["find_unused_parameters"] else 0
        assert [rank.label(one) for one in sent if one not in gradients] == ["ddp0/unused"] * unused
    return ranks


def later(rank: RankRecording) -> int:
    """How many of the calls after the training were recorded."""
    return sum(one.op == Op.ALL_REDUCE and one.bytes_in == rank.truth["later_bytes"] for one in rank.collectives)


@pytest.mark.parametrize(
    ("framework", "launcher"),
    [("lightning", TORCHRUN), ("lightning", OWN), ("transformers", TORCHRUN), ("accelerate", ACCELERATE)],
    ids=["lightning-torchrun", "lightning-own-launcher", "transformers-torchrun", "accelerate-launch"],
)
def test_recorded_from_the_launch_line(tmp_path: Path, framework: str, launcher: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    outside = {"PYTHONPATH": str(launching.BOOTSTRAP), "DDIAG_RUN": str(run)}
    truth = train(tmp_path / "ours", launcher, framework, **outside)
    for rank in recorded_all(run, truth):
        phases = set(phase_names(rank.files))
        assert {"INPUT", "FORWARD", "BACKWARD", "OPTIMIZER"} <= phases
        assert ("EVALUATION" in phases) == (framework == "lightning")
        assert ("CLIP" in phases) == (framework in ("lightning", "transformers"))
        assert later(rank) == rank.truth["later"]
    assert as_without(tmp_path, launcher, framework, truth)


@pytest.mark.parametrize(
    ("framework", "launcher"),
    [("lightning", OWN), ("transformers", TORCHRUN), ("accelerate", ACCELERATE)],
    ids=["lightning-own-launcher", "transformers-torchrun", "accelerate-launch"],
)
def test_recorded_from_within_the_script(tmp_path: Path, framework: str, launcher: tuple[str, ...]) -> None:
    truth = train(tmp_path / "ours", launcher, framework, "api", PYTHONPATH=str(REPOSITORY))
    (manifest,) = (tmp_path / "ours").glob("api-*/run.json")
    assert read_manifest(manifest.parent).launcher == "api"
    for rank in recorded_all(manifest.parent, truth):
        until_the_end = framework == "accelerate"  # ddiag.record(); callbacks end with the training
        assert later(rank) == (rank.truth["later"] if until_the_end else 0)
    assert as_without(tmp_path, launcher, framework, truth)
