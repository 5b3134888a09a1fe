"""What is put into the job's environment, so that the recorder is there in every Python process of it.

A copy of the bootstrap folder goes first on ``PYTHONPATH``; beside its ``sitecustomize.py`` lies a file that names the
run folder, since some launchers (DeepSpeed across nodes) hand on ``PYTHON*`` variables only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from ddiag.schema.folder import BESIDE_BOOTSTRAP, RUN_VARIABLE, write_whole

PACKAGE = Path(__file__).resolve().parents[1]
BOOTSTRAP = PACKAGE / "capture" / "bootstrap"
COPY = "bootstrap"
_OPEN_MPI = ("mpirun", "mpiexec", "orterun")
_BASE_ENVIRONMENT = "OMPI_MCA_mca_base_env_list"


def copy_bootstrap(run: Path) -> Path:
    """Put this run's bootstrap folder into the run folder, and return it.

    A path with a colon cannot stand on PYTHONPATH; such a run's bootstrap lies in a temporary folder instead.
    """
    folder = run / COPY
    if os.pathsep in str(folder):
        folder = Path(tempfile.mkdtemp(prefix="ddiag-bootstrap-"))
    folder.mkdir(exist_ok=True)
    beside = {"run": str(run), "package": str(PACKAGE)}
    write_whole(folder / BESIDE_BOOTSTRAP, json.dumps(beside) + "\n")
    for source in BOOTSTRAP.glob("*.py"):
        temporary = folder / f".{source.name}.{os.getpid()}"
        shutil.copyfile(source, temporary)
        temporary.replace(folder / source.name)
    return folder


def job_environment(given: Mapping[str, str], run: Path, bootstrap: Path, command: Sequence[str]) -> dict[str, str]:
    """*given* with what the recorder needs, and nothing else."""
    after = given.get("PYTHONPATH")
    added = {"PYTHONPATH": f"{bootstrap}{os.pathsep}{after}" if after else str(bootstrap), RUN_VARIABLE: str(run)}
    if forwards_by_list(command) and _BASE_ENVIRONMENT not in given:
        added[_BASE_ENVIRONMENT] = ";".join(added)
    return {**given, **added}


def forwards_by_list(command: Sequence[str]) -> bool:
    """Open MPI hands variables to other nodes by name; it refuses the list when the command has ``-x`` too."""
    return PurePath(command[0]).name in _OPEN_MPI and "-x" not in command


def needs_exporting(command: Sequence[str]) -> bool:
    """Open MPI with the user's own ``-x`` and other nodes: only the user can add ours to theirs."""
    places = ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
    return (
        PurePath(command[0]).name in _OPEN_MPI
        and "-x" in command
        and any(word in places for word in command)
        and RUN_VARIABLE not in command
    )
