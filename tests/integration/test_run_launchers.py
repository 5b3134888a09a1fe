"""``ddiag run`` before the launchers of others: their ranks are found, and they themselves are not taken for ranks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddiag.schema import ring, steps
from ddiag.schema.folder import DIAGNOSIS, ERRORS, ProcessFiles, find_processes, read_manifest
from tests.integration.deepspeed_ops import deepspeed_environment, python_with
from tests.integration.recording import JOBS
from tests.integration.running import PYTHON, TRAIN, environment, only_run, outcome, recorded, run, script, start

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("run_launchers"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
RANKS, ATTEMPTS = 2, 4
ABORTED = b"terminate called without an active exception"
MPI_VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_base_warn_component_unused": "0",
}
ALONE = """
import sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for step in range(5):
    model(torch.randn(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
assert "torch.distributed" not in sys.modules or not torch.distributed.is_initialized()
"""
"""A rank that joins no process group: its launcher alone numbers it."""
SRUN = """#!/bin/sh
# What srun gives to the tasks of a step on one node.
export SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_NTASKS=2
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" & other=$!
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"; code=$?
wait $other && exit $code
"""


def _steps(files: ProcessFiles) -> int:
    return len(steps.unpack(files.steps.read_bytes()))


def _places(folder: Path) -> list[tuple[int, int, int]]:
    """(rank, local rank, world size) of every recorded process."""
    headers = [ring.unpack_header(files.ring.read_bytes()) for files in find_processes(folder)]
    return [(one.rank, one.local_rank, one.world_size) for one in headers]


def _recorded(out: Path, launcher: str, count: int) -> Path:
    """The only run below *out*: two ranks of *count* steps each, nobody else, no trouble."""
    folder = only_run(out)
    assert not (folder / ERRORS).exists(), (folder / ERRORS).read_text()
    assert _places(folder) == [(rank, rank, RANKS) for rank in range(RANKS)]
    assert [_steps(files) for files in find_processes(folder)] == [count] * RANKS
    assert read_manifest(folder).launcher == launcher
    return folder


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _trained(command: Sequence[str], out: Path | None = None, **more: str) -> subprocess.CompletedProcess[bytes]:
    """The job's end; *out* is where it is recorded, if it is.

    About one in ten processes of torch 2.13 that no torchrun started aborts when it exits, with and without a recorder
    (a thread of torch's is destroyed before it was joined): such an attempt does not count.
    """
    for _ in range(ATTEMPTS):
        done = run(command, env=environment(**_store(), **MPI_VARIABLES, **more))
        if ABORTED not in done.stderr:
            break
        if out is not None:
            shutil.rmtree(out)
    assert done.returncode == 0, done.stderr
    return done


def _store() -> dict[str, str]:
    """For launchers that do not say where the ranks meet."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_deepspeed_runner(tmp_path: Path) -> None:
    """Its launcher starts a second one, which starts the ranks."""
    python = python_with("deepspeed")
    given = environment(**deepspeed_environment(python))

    def train(folder: Path, words: Sequence[str]) -> list[str]:
        folder.mkdir()
        port = f"--master_port={_free_port()}"
        runner = [str(Path(python).with_name("deepspeed")), "--num_gpus=2", "--no_local_rank", port]
        done = run([*words, *runner, str(JOBS / "bits.py"), str(folder), "zero2"], cwd=folder, env=given)
        assert done.returncode == 0, done.stderr.decode()[-4000:]
        return [(folder / f"bits{rank}.json").read_text() for rank in range(RANKS)]

    ours = train(tmp_path / "ours", recorded(tmp_path / "runs"))
    folder = _recorded(tmp_path / "runs", "deepspeed", 12)
    assert json.loads((folder / DIAGNOSIS).read_text())["coverage"]["ranks_seen"] == [0, 1]
    assert ours == train(tmp_path / "bare", [])


@pytest.mark.long
def test_accelerate_launch(tmp_path: Path) -> None:
    program = str(Path(python_with("accelerate")).with_name("accelerate"))
    path = script(tmp_path, TRAIN, name="train.py")
    command = [program, "launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0", path]
    bare = run(command, cwd=tmp_path)
    ours = run([*recorded(tmp_path / "runs", "--no-report"), *command], cwd=tmp_path)
    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
    assert bare.returncode == 0, bare.stderr
    _recorded(tmp_path / "runs", "accelerate", 12)


MPI = "import os\nfor name in ('RANK', 'SIZE'):\n    told = os.environ['OMPI_COMM_WORLD_' + name]\n"
MPI += "    os.environ['WORLD_SIZE' if name == 'SIZE' else name] = told\n"


def _mpirun(*options: str) -> list[str]:
    return ["mpirun", "--oversubscribe", *options, "-np", "2"]


@needs_mpirun
@pytest.mark.parametrize("options", [(), pytest.param(("-x", "STEPS"), marks=pytest.mark.long)])
def test_mpirun_hands_the_recorder_to_every_rank(tmp_path: Path, options: tuple[str, ...]) -> None:
    """With an ``-x`` of the user's, mpirun would refuse a list of ours."""
    command = [*_mpirun(*options), PYTHON, script(tmp_path, MPI + TRAIN)]
    out = tmp_path / "runs"
    bare, ours = _trained(command, STEPS="12"), _trained([*recorded(out, "--no-report"), *command], out, STEPS="12")
    assert outcome(ours) == outcome(bare)
    _recorded(tmp_path / "runs", "mpirun", 12)


@needs_mpirun
@pytest.mark.long
def test_ranks_that_mpirun_alone_numbers(tmp_path: Path) -> None:
    command = [*_mpirun(), PYTHON, script(tmp_path, ALONE)]
    _trained([*recorded(tmp_path / "runs", "--no-report"), *command], tmp_path / "runs")
    _recorded(tmp_path / "runs", "mpirun", 5)


@needs_mpirun
@pytest.mark.long
def test_one_supervisor_per_rank_of_mpirun_share_a_run(tmp_path: Path) -> None:
    command = [*_mpirun(), *recorded(tmp_path / "runs"), PYTHON, script(tmp_path, MPI + TRAIN)]
    done = _trained(command, tmp_path / "runs")
    assert len(done.stdout.splitlines()) == 12
    _recorded(tmp_path / "runs", "python", 12)
    assert done.stderr.count(b"report:") == 1


@pytest.mark.long
@pytest.mark.parametrize("job", ["alone", "together"])
def test_tasks_of_srun_by_its_variables_alone(tmp_path: Path, job: str) -> None:
    """There is no Slurm here: a script named so gives its tasks what srun does."""
    srun = Path(script(tmp_path, SRUN, name="srun"))
    srun.chmod(0o755)
    joined = "import os\nos.environ['RANK'] = os.environ['SLURM_PROCID']\n"
    joined += "os.environ['WORLD_SIZE'] = os.environ['SLURM_NTASKS']\n"
    path = script(tmp_path, ALONE if job == "alone" else joined + TRAIN)
    _trained([*recorded(tmp_path / "runs", "--no-report"), str(srun), PYTHON, path], tmp_path / "runs")
    _recorded(tmp_path / "runs", "srun", 5 if job == "alone" else 12)


def test_one_supervisor_per_task_of_a_slurm_step_share_a_run(tmp_path: Path) -> None:
    """``srun ddiag run -- python train.py``: a supervisor for each rank."""
    job = script(tmp_path, TRAIN, name="train.py")
    for _ in range(ATTEMPTS):
        shared = {**_store(), "WORLD_SIZE": "2", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}
        tasks = [
            start(
                [*recorded(tmp_path / "runs"), PYTHON, job],
                env={**environment(**shared), "RANK": str(rank), "SLURM_PROCID": str(rank)},
            )
            for rank in range(2)
        ]
        said = [task.communicate(timeout=150)[1] for task in tasks]
        if not any(ABORTED in one for one in said):
            break
        shutil.rmtree(tmp_path / "runs")
    assert [task.returncode for task in tasks] == [0, 0], said
    folder = only_run(tmp_path / "runs")
    assert [files.rank for files in find_processes(folder)] == [0, 1]
    assert json.loads((folder / DIAGNOSIS).read_text())["coverage"]["ranks_seen"] == [0, 1]
    assert sum(b"report:" in one for one in said) == 1
    assert len(list((folder / "nodes").glob("*.samples"))) == 1
