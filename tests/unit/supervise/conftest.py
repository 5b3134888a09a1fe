"""A stand-in for NVIDIA's library, compiled here, and processes that use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).with_name("nvml_stub.c")
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libnvidia-ml.so.1, for LD_LIBRARY_PATH."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1"), str(STUB)], check=True)
    return folder


class StubbedDevices:
    """A Python in which the stub is the driver's library; ``values`` may change while it runs."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.values = folder / "values"
        self.library = library

    @property
    def environment(self) -> dict[str, str]:
        given = {"LD_LIBRARY_PATH": str(self.library), "NVML_STUB": str(self.values), "PYTHONPATH": str(REPOSITORY)}
        return {**os.environ, **given}

    def write(self, **values: object) -> None:
        """Replace the values; ``_0_util=5`` is ``0.util 5``."""
        lines = [f"{key.lstrip('_').replace('__', '.', 1)} {value}" for key, value in values.items()]
        beside = self.values.with_suffix(".new")
        beside.write_text("\n".join(lines) + "\n")
        beside.replace(self.values)

    def python(self, code: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def stubbed(nvml_folder: Path, tmp_path: Path) -> StubbedDevices:
    return StubbedDevices(nvml_folder, tmp_path)
