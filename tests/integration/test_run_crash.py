"""Jobs that fail: the diagnosis says that they did, and which training process was the first."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit.diagnosis import Diagnosis, Status
from ddiag.schema.folder import read_manifest
from tests.integration.running import TORCHRUN, environment, eventually, only_run, recorded, run, script, start

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("crashes"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]
TRAIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn

def end():
    ENDING

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for number in range(60):
    if dist.get_rank() == 1 and number == 40:
        end()
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""
ENDINGS = {
    "an exception": ("raise ValueError('bad batch 17')", "ValueError: bad batch 17"),
    "an exit code": ("sys.exit(3)", "exit code 3"),
    "a kill": ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    "a native crash": ("os.abort()", "killed by SIGABRT"),
}


def crashed(folder: Path, command: list[str]) -> Diagnosis:
    done = run([*recorded(folder / "runs", "--no-report"), *command], cwd=folder, env=environment())
    assert done.returncode != 0
    return diagnose(load([str(only_run(folder / "runs"))]))


@pytest.mark.parametrize(
    "how", [pytest.param(one, marks=() if at < 1 else pytest.mark.long) for at, one in enumerate(ENDINGS)]
)
def test_the_rank_that_ended_first_is_named(tmp_path: Path, how: str) -> None:
    ending, words = ENDINGS[how]
    job = script(tmp_path, TRAIN.replace("ENDING", ending))
    found = crashed(tmp_path, [*TORCHRUN, "--standalone", "--nproc-per-node=2", job])
    assert found.verdict.status is Status.CRASHED
    assert found.verdict.primary == "DD943"
    (finding,) = (one for one in found.findings if one.rule == "DD943")
    assert finding.culprits.ranks == (1,), finding
    # On a crowded machine the launcher may be quicker to clear away what was killed than we are to look at it.
    assert words in finding.title or (words.startswith("killed") and "how was not seen" in finding.title)


@pytest.mark.long
def test_a_command_that_fails_after_the_training_blames_no_rank(tmp_path: Path) -> None:
    job = script(tmp_path, TRAIN.replace("ENDING", "pass"))
    line = f"{' '.join(TORCHRUN)} --standalone --nproc-per-node=2 {job}; exit 5"
    found = crashed(tmp_path, ["sh", "-c", line])
    assert found.verdict.status is Status.CRASHED
    (finding,) = (one for one in found.findings if one.rule == "DD943")
    assert finding.culprits.ranks == ()
    assert "exit code 5" in finding.title


@pytest.mark.long
def test_a_job_without_a_launcher_is_its_own_culprit(tmp_path: Path) -> None:
    job = script(tmp_path, TRAIN.replace("ENDING", "pass").replace("get_rank() == 1", "get_rank() == 0"))
    text = Path(job).read_text().replace("    pass", "    {}['lost']")
    Path(job).write_text(text)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env = environment(**alone)
    done = run([*recorded(tmp_path / "runs", "--no-report"), sys.executable, job], cwd=tmp_path, env=env)
    assert done.returncode == 1, done.stderr
    folder = only_run(tmp_path / "runs")
    assert read_manifest(folder).exit_code == 1
    found = diagnose(load([str(folder)]))
    (finding,) = (one for one in found.findings if one.rule == "DD943")
    assert finding.culprits.ranks == (0,)
    assert "KeyError: 'lost'" in finding.title


@pytest.mark.long
def test_ctrl_c_is_no_crash_and_a_second_one_ends_the_diagnosis_at_once(tmp_path: Path) -> None:
    job = script(tmp_path, TRAIN.replace("ENDING", "pass").replace("range(60)", "range(10**6)"))
    said = tmp_path / "stderr"
    command = [*recorded(tmp_path / "runs"), *TORCHRUN, "--standalone", "--nproc-per-node=2", job]
    with said.open("wb") as stderr, start(command, cwd=tmp_path, stderr=stderr) as process:
        eventually(lambda: len(list((tmp_path / "runs").glob("*/ranks/a0/*.steps"))) == 2)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)
        eventually(lambda: b"diagnosing it (Ctrl-C: not now)" in said.read_bytes())
        again = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)
        took_s = time.monotonic() - again
    ours = [line for line in said.read_text().splitlines() if line.startswith("ddiag: ")]
    assert took_s < 5
    assert ours[-1].startswith("ddiag: no report: SIGINT came. Make it with: ddiag analyze ")
    folder = only_run(tmp_path / "runs")
    assert read_manifest(folder).asked_to_end == "SIGINT"
    found = diagnose(load([str(folder)]))
    assert "DD943" not in {one.rule for one in found.findings}
    assert any("somebody ended the job with SIGINT" in note for note in found.coverage.notes)
