"""Profiler windows on real jobs: of outliers that come again and again, on all ranks together; and at a job's end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddiag import api
from ddiag.schema import steps
from ddiag.schema.folder import find_processes
from ddiag.supervise.slow_steps import MAX_WINDOWS
from tests.integration.running import PYTHON, TORCHRUN, only_run, recorded, run, script

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]
EVERY = 10
JOB = f"""
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for step in range(180):
    time.sleep(.05)
    if step % {EVERY} == {EVERY - 1} and dist.get_rank() == 1:
        time.sleep(.6)
    model(torch.randn(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_periodic_outliers_are_profiled_on_all_ranks_together(tmp_path: Path) -> None:
    job = [*TORCHRUN, "--standalone", "--nproc-per-node=2", script(tmp_path, JOB)]
    watched = recorded(tmp_path / "runs", "--profile-slow", "--no-report", "--sample-interval=0.25")
    done = run([*watched, *job], cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    folder = only_run(tmp_path / "runs")
    windows = sorted((folder / "profile").glob("steps-*"))
    assert 1 <= len(windows) <= MAX_WINDOWS
    for window in windows:
        assert sorted(path.name for path in window.iterdir()) == ["r00000.json.gz", "r00001.json.gz"]
        first, last = map(int, window.name.split("-")[1:3])
        assert any(step % EVERY == EVERY - 1 for step in range(first, last + 1)), (first, last)
    assert api.load([str(windows[0])]).table("ranks")["rank"].to_list() == [0, 1]
    for files in find_processes(folder):
        done_steps = steps.unpack(files.steps.read_bytes())
        profiled = {one.step for one in done_steps if one.flags & steps.StepFlag.PROFILED}
        assert {int(window.name.split("-")[1]) for window in windows} <= profiled
        assert len(done_steps) == 180


def test_a_job_that_ends_in_a_window_ends_as_it_would_without(tmp_path: Path) -> None:
    """Torch crashes when the interpreter goes while a profiler runs."""
    job = script(
        tmp_path,
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=.1)\n"
        "for step in range(8):\n"
        "    model(torch.randn(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "raise SystemExit(3)\n",
    )
    done = run([*recorded(tmp_path / "runs", "--profile-steps", "5:10", "--no-report"), PYTHON, job])
    assert done.returncode == 3, done.stderr
    (trace,) = (only_run(tmp_path / "runs") / "profile").glob("*/r00000.json.gz")
    assert trace.stat().st_size > 1000
