"""DeepSpeed in an environment of its own, with its operators compiled before a job needs them.

DeepSpeed compiles them at first use, for minutes, into a folder of the user's; a build that was killed leaves a lock
there on which every later job waits for ever. So they are built here, by one process at a time, in a folder of ours.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shared import other_python

BUILD_LIMIT_S = 1200
_OPERATORS = ("ShareMemCommBuilder", "CPUAdamBuilder")
_BUILD = """
import sys
from deepspeed.accelerator import get_accelerator
for name in sys.argv[1:]:
    get_accelerator().create_op_builder(name).load(verbose=False)
"""
_built: set[Path] = set()


def python_with(module: str) -> str:
    """The interpreter that has *module*; skips the calling test without one.

    Its path is the same from every checkout that shares the environment: operators are compiled anew for another.
    """
    found = other_python(".venv-frameworks")
    python = found.parent.resolve() / found.name
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"{module} cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    return str(python)


def deepspeed_environment(python: str) -> dict[str, str]:
    """Variables for a DeepSpeed job on the CPU, its operators built; skips the calling test without a compiler."""
    if shutil.which("g++") is None:
        pytest.skip("DeepSpeed compiles its operators: no g++")
    folder = Path(python).parents[1] / "torch_extensions"
    given = {
        "DS_ACCELERATOR": "cpu",
        "MAX_JOBS": "1",
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "TORCH_EXTENSIONS_DIR": str(folder),
    }
    if folder not in _built:
        _build(python, folder, given)
        _built.add(folder)
    return given


def _build(python: str, folder: Path, given: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "building").open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        for lock in folder.rglob("lock"):
            lock.unlink()  # whoever made it was killed: we are the only builder
        subprocess.run(
            [python, "-c", _BUILD, *_OPERATORS],
            env={**os.environ, **given},
            capture_output=True,
            timeout=BUILD_LIMIT_S,
            check=True,
        )
