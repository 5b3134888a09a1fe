"""``tools.gpu_check`` where there is no GPU: it says so, and it can be rehearsed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.running import PYTHON, REPOSITORY, environment

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")


def gpu_check(*options: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "tools.gpu_check", *options],
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
def test_the_comparison_with_the_jobs_own_account_holds_on_the_cpu() -> None:
    """What it costs is not judged here: too short, on a machine that runs other tests."""
    done = gpu_check("--rehearse", "--rounds=1", limit_s=800)
    found = [line for line in done.stdout.splitlines() if line.startswith("  ") and not line.startswith("  step,")]
    assert [line for line in found if line.endswith("FAIL")] == [], done.stdout + done.stderr
    assert len([line for line in found if line.endswith("PASS")]) == 4
