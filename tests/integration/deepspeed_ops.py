"""DeepSpeed in an environment of its own, with its operators compiled before a job needs them.

DeepSpeed compiles them at first use, for minutes, into a folder of the user's; a build that was killed leaves a lock
there on which every later job waits for ever. So they are built here, once per environment, each by one process at a
time, in a folder of ours.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.running import start
from tests.shared import other_python

BUILD_LIMIT_S = 1200
_OPERATORS = ("ShareMemCommBuilder", "CPUAdamBuilder")
_BUILD = """
import fcntl, os, sys
from pathlib import Path
from deepspeed.accelerator import get_accelerator
folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
for name in sys.argv[1:]:
    builder = get_accelerator().create_op_builder(name)
    with (folder / f"{builder.name}.building").open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        (folder / builder.name / "lock").unlink(missing_ok=True)
        builder.load(verbose=False)
"""
"""Our lock ends with whoever builds, even where the tests that asked for it were killed before; torch's own stays for
ever, and whoever left one has ended."""
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
        folder.mkdir(exist_ok=True)
        _build(python, given)
        _built.add(folder)
    return given


def _build(python: str, given: dict[str, str]) -> None:
    """A compiler that outlived its limit would write beside the next one's: all of the build ends together."""
    with start([python, "-c", _BUILD, *_OPERATORS], env={**os.environ, **given}) as building:
        try:
            _, said = building.communicate(timeout=BUILD_LIMIT_S)
        except BaseException:
            os.killpg(building.pid, signal.SIGKILL)
            raise
    assert building.returncode == 0, said.decode()[-4000:]
