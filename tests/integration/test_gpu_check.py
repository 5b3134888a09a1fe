"""``tools.gpu_check`` where there is no GPU: it says so, and it can be rehearsed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.running import PYTHON, REPOSITORY, environment
from tests.shared import other_python

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")


EXPECTED = (
    "steps",
    "gradient reductions per recorded step",
    "errors caught by the recorder",
    "traces of the profiler window",
    "parameters and losses, recorded",
    "captured graph, recorded",
    "parameters and losses, timed",
    "captured graph, timed",
)
"""Verdicts that need no device."""


def gpu_check(*options: str, limit_s: float, python: str = PYTHON) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "tools.gpu_check", *options],
        cwd=REPOSITORY,
        env=environment(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@pytest.mark.slow
def test_without_a_gpu_it_says_so() -> None:
    done = gpu_check(limit_s=150)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("gpu_check: no GPU that torch ")
    assert done.stderr.endswith("nothing was checked\n")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("venv", [None, ".venv-torch214"], ids=["with everything", "with torch and numpy only"])
def test_the_comparison_with_the_jobs_own_account_holds_on_the_cpu(venv: str | None) -> None:
    """What it costs is not judged here: too short, on a machine that runs other tests."""
    python = PYTHON if venv is None else str(other_python(venv))
    done = gpu_check("--rehearse", "--rounds=1", limit_s=800, python=python)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith("FAIL")] == [], done.stdout + done.stderr
    passed = [line.rsplit("  ", 1)[0] for line in lines if line.endswith("PASS")]
    assert [what for what in EXPECTED if not any(line.strip().startswith(what) for line in passed)] == [], lines
    assert any("not made: polars" in line for line in lines) == (venv is not None)
    assert done.returncode == 0
