"""What a launch line is, what its run is called, what goes into its environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddiag.supervise.environment import copy_bootstrap, job_environment, needs_exporting
from ddiag.supervise.launcher import is_isolated, launcher_word, run_name


@pytest.mark.parametrize(
    ("line", "word", "name"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", "torchrun", "train"),
        ("/opt/venv/bin/torchrun --standalone -m pkg.train", "torchrun", "pkg.train"),
        ("python -m torch.distributed.run --nproc-per-node 2 src/train.py", "torchrun", "train"),
        ("python3.12 -u train.py", "python", "train"),
        ("python -m pkg.train --x", "python", "pkg.train"),
        ("python /venv/bin/torchrun train.py", "torchrun", "train"),
        ("deepspeed --num_gpus 2 train.py", "deepspeed", "train"),
        ("accelerate launch --multi_gpu train.py", "accelerate", "train"),
        ("mpirun -np 4 python train.py", "mpirun", "train"),
        ("srun --ntasks 8 python train.py", "srun", "train"),
        ("bash -c torchrun", "shell", "bash"),
        ("./launch.sh --x", "other", "launch.sh"),
        ("env A=1 numactl --cpunodebind 0 torchrun train.py", "torchrun", "train"),
        ("sleep 5", "other", "sleep"),
        ("mybinary python", "other", "mybinary"),
    ],
)
def test_launch_lines(line: str, word: str, name: str) -> None:
    assert launcher_word(line.split()) == word
    assert run_name(line.split()) == name


@pytest.mark.parametrize(
    ("line", "isolated"),
    [
        ("python -I train.py", True),
        ("python -sE train.py", True),
        ("python -S -m train", True),
        ("torchrun python -I", True),
        ("python train.py -I", False),
        ("python -m train -E", False),
        ("python -u train.py", False),
        ("python -c print(1) -S", False),
        ("python -X importtime train.py", False),
        ("torchrun -S x", False),
    ],
)
def test_a_python_that_keeps_the_recorder_out_is_recognised(line: str, isolated: bool) -> None:
    assert is_isolated(line.split()) is isolated


def test_the_bootstrap_leads_the_path_and_names_the_run(tmp_path: Path) -> None:
    folder = copy_bootstrap(tmp_path)
    beside = json.loads((folder / "ddiag-bootstrap.json").read_text())
    assert beside["run"] == str(tmp_path)
    assert (Path(beside["package"]) / "capture").is_dir()
    assert (folder / "sitecustomize.py").is_file()
    for before, after in (({}, ""), ({"PYTHONPATH": ""}, ""), ({"PYTHONPATH": "/a:/b"}, ":/a:/b")):
        assert job_environment(before, tmp_path, folder, ["python"])["PYTHONPATH"] == f"{folder}{after}"


def test_a_colon_in_the_path_does_not_break_it(tmp_path: Path) -> None:
    run = tmp_path / "a:b"
    run.mkdir()
    folder = copy_bootstrap(run)
    assert ":" not in str(folder)
    assert (folder / "sitecustomize.py").is_file()
    assert json.loads((folder / "ddiag-bootstrap.json").read_text())["run"] == str(run)


def test_open_mpi_hands_our_variables_to_other_nodes(tmp_path: Path) -> None:
    listed = job_environment({}, tmp_path, tmp_path, ["mpirun", "-np", "2", "python"])
    assert listed["OMPI_MCA_mca_base_env_list"] == "PYTHONPATH;DDIAG_RUN"
    for command, given in (
        (["mpirun", "-x", "A", "python"], {}),
        (["torchrun", "x.py"], {}),
        (["mpirun", "python"], {"OMPI_MCA_mca_base_env_list": "A"}),
    ):
        assert job_environment(given, tmp_path, tmp_path, command).get("OMPI_MCA_mca_base_env_list") == given.get(
            "OMPI_MCA_mca_base_env_list"
        )
    assert needs_exporting(["mpirun", "-x", "A", "-H", "a,b", "python"])
    assert not needs_exporting(["mpirun", "-x", "A", "-np", "2", "python"])
    assert not needs_exporting(["mpirun", "-x", "A", "-x", "DDIAG_RUN", "-H", "a,b", "python"])
