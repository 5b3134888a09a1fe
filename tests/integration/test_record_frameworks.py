"""Lightning, the Hugging Face Trainer and accelerate: the same steps as the framework counts, from either side.

They live in a second environment, since a training stack has opinions about every version: set
``DDIAG_FRAMEWORKS_PYTHON`` to its interpreter. Without it the tests use this one, and skip what it lacks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from ddiag.schema.folder import ProcessFiles, find_processes, read_manifest
from tests.integration import launching
from tests.integration.launching import REPOSITORY, SCRIPTS, phase_names, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PYTHON = os.environ.get("DDIAG_FRAMEWORKS_PYTHON", sys.executable)
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0")


@cache
def _has(package: str) -> bool:
    found = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False)
    return found.returncode == 0


def _needs(package: str) -> None:
    if not _has(package):
        pytest.skip(f"{package} is not importable by {PYTHON}; set DDIAG_FRAMEWORKS_PYTHON")


def _train(folder: Path, launcher: Sequence[str], framework: str, *, api: bool) -> None:
    _needs(framework)
    variables = launching.environment(folder, CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
    if api:
        del variables["DDIAG_RUN"]
        variables["PYTHONPATH"] = str(REPOSITORY)
    command = [PYTHON, *launcher, str(SCRIPTS / "record_frameworks.py"), str(folder), framework]
    done = launching.execute([*command, *(["api"] if api else [])], variables)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "ddiag" not in done.stderr


def _check(folder: Path, run: Path) -> list[ProcessFiles]:
    assert launching.errors(run) == ""
    found = find_processes(run)
    assert [files.rank for files in found] == [0, 1]
    for files in found:
        truth = launching.truth(folder, files.rank)
        steps = steps_of(files)
        assert files.pid == truth["pid"]
        assert len(steps) == truth["steps"] > 0
        assert {step.micro_steps for step in steps} == {truth["micro_steps"]}
    return found


@pytest.mark.parametrize(
    ("framework", "launcher"),
    [("lightning", TORCHRUN), ("lightning", ()), ("transformers", TORCHRUN), ("accelerate", ACCELERATE)],
    ids=["lightning-torchrun", "lightning-own-launcher", "transformers-torchrun", "accelerate-launch"],
)
def test_recorded_from_the_launch_line(tmp_path: Path, framework: str, launcher: Sequence[str]) -> None:
    _train(tmp_path, launcher, framework, api=False)
    for files in _check(tmp_path, tmp_path):
        names = phase_names(files)
        assert {"INPUT", "FORWARD", "BACKWARD", "OPTIMIZER"} <= set(names)
        assert ("EVALUATION" in names) == (framework == "lightning")
        assert ("CLIP" in names) == (framework in ("lightning", "transformers"))


@pytest.mark.parametrize(
    ("framework", "launcher"),
    [("lightning", ()), ("transformers", TORCHRUN), ("accelerate", ACCELERATE)],
    ids=["lightning", "transformers", "accelerate"],
)
def test_recorded_from_within_the_script(tmp_path: Path, framework: str, launcher: Sequence[str]) -> None:
    _train(tmp_path, launcher, framework, api=True)
    runs = [path.parent for path in tmp_path.glob("api-*/run.json")]
    assert len(runs) == 1, runs
    assert read_manifest(runs[0]).launcher == "api"
    _check(tmp_path, runs[0])
