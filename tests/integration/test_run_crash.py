"""Jobs that fail: the diagnosis says that they did, and which training process was the first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit.diagnosis import Diagnosis, Status
from ddiag.schema import steps
from ddiag.schema.folder import find_processes, read_manifest
from tests.integration.running import (
    TORCHRUN,
    environment,
    eventually,
    only_run,
    outcome,
    recorded,
    run,
    script,
    start,
)

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


TRAIN_AND_END = """
import atexit, os, resource, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
atexit.register(print, "an exit function of the job")
BEFORE
for number in range(10):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    os.write(1, b"step %d\\n" % number)  # in one piece, beside another rank's
if dist.get_rank() == dist.get_world_size() - 1:
    END
time.sleep(60)
"""
SAVE = "signal.signal(signal.SIGTERM, lambda *_: (print('saving', flush=True), sys.exit(7)))"
SAY = "sys.excepthook = lambda kind, *_: print('a hook of the job saw', kind.__name__)"
HOW_IT_ENDS = {
    "raises": ("", "raise ValueError('bad batch')", 1),
    "raises, with a hook of its own": (SAY, "raise ValueError('bad batch')", 1),
    "exits with 3": ("", "sys.exit(3)", 3),
    "exits without cleaning up": ("", "os._exit(4)", 4),
    "SIGTERM": ("", "os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGTERM, handled": (SAVE, "os.kill(os.getpid(), signal.SIGTERM)", 7),
    "SIGINT": ("", "os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    "SIGUSR1, ignored": (
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "os.kill(os.getpid(), signal.SIGUSR1); sys.exit(5)", 5
    ),
    "SIGKILL": ("", "os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "aborts": ("", "os.abort()", -signal.SIGABRT),
}  # fmt: skip
"""What the job does before it trains, how it ends, and its exit code."""
_TIMES_AND_PIDS = re.compile(rb"\d+|/tmp/\S+")


def said(done: subprocess.CompletedProcess[bytes]) -> tuple[int, list[bytes], list[bytes]]:
    """Exit code, and the lines of both outputs (of several ranks, in whatever order), but for times, pids and ports."""
    code, out, err = outcome(done)
    return code, *(sorted(_TIMES_AND_PIDS.sub(b"#", text).splitlines()) for text in (out, err))


@pytest.mark.parametrize(
    "how", [pytest.param(one, marks=() if one == "SIGTERM, handled" else pytest.mark.long) for one in HOW_IT_ENDS]
)
def test_a_recorded_training_dies_as_it_would_unrecorded(tmp_path: Path, how: str) -> None:
    before, end, code = HOW_IT_ENDS[how]
    job = [sys.executable, script(tmp_path, TRAIN_AND_END.replace("BEFORE", before).replace("END", end))]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    bare = run(job, cwd=tmp_path, env=environment(**alone))
    ours = run([*recorded(tmp_path / "runs", "--no-report"), *job], cwd=tmp_path, env=environment(**alone))
    assert said(ours) == said(bare)
    assert ours.returncode == code
    assert ours.stdout.count(b"step") == 10
    assert _steps(only_run(tmp_path / "runs")) == {0: 10}


WORKERS = ("raises", "exits with 3", "SIGTERM", "SIGTERM, handled", "SIGKILL")


@pytest.mark.long
@pytest.mark.parametrize("how", WORKERS)
def test_torchrun_says_of_a_recorded_worker_what_it_would_say_of_another(tmp_path: Path, how: str) -> None:
    before, end, code = HOW_IT_ENDS[how]
    path = script(tmp_path, TRAIN_AND_END.replace("BEFORE", before).replace("END", end))
    job = [*TORCHRUN, "--standalone", "--nproc-per-node=2", path]
    bare = run(job, cwd=tmp_path, env=environment())
    ours = run([*recorded(tmp_path / "runs", "--no-report"), *job], cwd=tmp_path, env=environment())
    assert said(ours) == said(bare)
    assert ours.returncode == 1
    assert re.search(rb"exitcode *: %d\b" % code, ours.stderr)
    assert ours.stdout.count(b"step") == 20
    assert _steps(only_run(tmp_path / "runs")) == {0: 10, 1: 10}


def _steps(folder: Path) -> dict[int, int]:
    return {one.rank: len(steps.unpack(one.steps.read_bytes())) for one in find_processes(folder)}


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
    assert "somebody ended the job with SIGINT" in found.coverage.ending
