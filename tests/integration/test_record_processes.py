"""Who is recorded: ranks, however they were started; never data-loader workers, helpers or launchers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddiag.schema.folder import find_processes
from ddiag.schema.phases import Kind, State
from tests.integration import launching
from tests.integration.launching import SCRIPTS, records, steps_of

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_spawned_ranks_are_recorded_and_their_helpers_are_not(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "record_processes.py"), str(tmp_path), str(_free_port())]
    done = launching.execute(command, launching.environment(tmp_path))
    assert done.returncode == 0, done.stderr
    pids = {rank: [int(pid) for pid in (tmp_path / f"pid-{rank}").read_text().split()] for rank in (0, 1)}
    found = {files.pid: files for files in find_processes(tmp_path)}
    assert set(found) == {pid for both in pids.values() for pid in both}
    for rank, (pid, child) in pids.items():
        assert found[pid].rank == rank
        assert len(steps_of(found[pid])) == 8
        # The forked child started anew: its own files, nothing of its parent's in them.
        assert records(found[child], Kind.PHASE)[0].step == 0
    assert launching.errors(tmp_path) == ""


_LONE = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training", flush=True)
while True:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


def test_a_killed_training_reads_up_to_its_last_moment(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _LONE], env=launching.environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "training\n"
    deadline = time.monotonic() + 60
    while not find_processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    (files,) = find_processes(tmp_path)
    steps = steps_of(files)
    assert len(steps) > 20
    assert [step.step for step in steps] == list(range(len(steps)))
    phases = records(files, Kind.PHASE)
    assert phases[-1].step - steps[-1].step in (0, 1, 2)
    assert sum(record.state == State.OPEN for record in phases) <= 1


def test_switched_off_nothing_is_written(tmp_path: Path) -> None:
    done = launching.torchrun(tmp_path, "record_loops.py", str(tmp_path), "plain", DDIAG_DISABLE="1")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["truth-0.json", "truth-1.json"]


def test_a_run_folder_that_cannot_be_written_leaves_the_job_alone(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root writes everywhere; a file where the folder should be fails for everybody.
        (tmp_path / "ranks").write_text("in the way")
    else:
        tmp_path.chmod(0o555)
    out = tmp_path.parent / "out"
    out.mkdir()
    done = launching.execute(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            str(SCRIPTS / "record_loops.py"),
            str(out),
            "plain",
        ],
        launching.environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "ddiag" not in done.stderr
    assert launching.truth(out, 0)["micro_steps"] == [1] * 6
