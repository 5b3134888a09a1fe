"""Processes of a recorded job are killed at random moments: every run folder reads and holds what the job did up to
then, by the job's own account; and the job computes and ends as it would unrecorded."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddiag.errors import InputError
from ddiag.schema import names, ring, steps
from ddiag.schema.folder import ProcessFiles, find_processes, read_manifest
from ddiag.schema.phases import Kind, Op
from ddiag.schema.ring import Record
from ddiag.schema.samples import read_samples
from ddiag.schema.steps import UNKNOWN, StepRecord
from tests.integration.running import PYTHON, alive, environment, eventually, recorded, run, script, start

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("chaos"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]

WHOLE, UNTIL_KILLED = 120, 1500
"""Steps of a job that is to end by itself, and of one that never gets there."""
PAUSE_S = 0.02
JOB = """
import os, sys, time
import torch, torch.distributed as dist

STEPS, PAUSE_S, PARENT = int(sys.argv[1]), float(sys.argv[2]), os.getpid()

def train(rank):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with open(f"rank-{rank}", "w") as file:
        file.write(str(os.getpid()))
    with open(f"losses-{rank}", "w") as losses:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 64)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.write(f"{loss.item():.17g}\\n")
            losses.flush()
            time.sleep(PAUSE_S)
            if os.getppid() != PARENT:
                break

children = []
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        train(rank)
        os._exit(0)
    children.append(pid)
codes = []
while children:
    pid, status = os.wait()
    children.remove(pid)
    codes.append(os.waitstatus_to_exitcode(status))
    if codes[-1] != 0:
        for other in children:
            os.kill(other, 9)
open("codes", "w").write(repr(codes))
sys.exit(1 if any(codes) else 0)
"""
VICTIMS = ("worker", "supervisor", "both", "job")
QUICK = (1, 2, 3)
"""Seeds of every run of the tests: every victim but the worker alone."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of both ranks without ddiag, without killing, and without pauses, which compute nothing."""
    folder = tmp_path_factory.mktemp("bare")
    done = run([PYTHON, script(folder, JOB), str(UNTIL_KILLED), "0"], cwd=folder)
    assert done.returncode == 0, done.stderr
    return [(folder / f"losses-{rank}").read_text() for rank in range(2)]


@pytest.fixture(scope="module")
def exit_code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], int]:
    """By victim: of the supervisor that is killed, or of the unrecorded job."""

    @functools.cache
    def code(victim: str) -> int:
        if victim in ("supervisor", "both"):
            return -signal.SIGKILL
        folder = tmp_path_factory.mktemp(victim)
        with start([PYTHON, script(folder, JOB), str(UNTIL_KILLED), str(PAUSE_S)], cwd=folder) as process:
            eventually(lambda: len(_ranks(folder)) == 2, within_s=120)
            os.kill(process.pid if victim == "job" else _ranks(folder)[0], signal.SIGKILL)
            process.communicate()
        return process.returncode

    return code


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", QUICK)
def test_a_kill_at_a_random_moment(
    seed: int, tmp_path: Path, expected: list[str], exit_code: Callable[[str], int]
) -> None:
    _kill_and_read(seed, tmp_path, expected, exit_code)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [one for one in range(50) if one not in QUICK])
def test_kills_at_many_random_moments(
    seed: int, tmp_path: Path, expected: list[str], exit_code: Callable[[str], int]
) -> None:
    _kill_and_read(seed, tmp_path, expected, exit_code)


def _kill_and_read(seed: int, folder: Path, expected: list[str], exit_code: Callable[[str], int]) -> None:
    chance = random.Random(seed)
    victim = VICTIMS[seed % len(VICTIMS)]
    started = chance.random() < 0.7 or victim in ("worker", "both")
    delay_s = chance.uniform(0.0, 1.5 if started else 3.0)
    count = WHOLE if victim == "supervisor" else UNTIL_KILLED
    job = [PYTHON, script(folder, JOB), str(count), str(PAUSE_S)]
    command = [*recorded(folder / "runs", "--sample-interval", "0.1", "--no-report"), *job]
    with start(command, cwd=folder, env=environment()) as process:
        path = eventually(lambda: next(iter((folder / "runs").glob("*/run.json")), None)).parent
        first = eventually(lambda: _job(process))
        if started:
            eventually(lambda: len(_ranks(folder)) == 2, within_s=120)
        time.sleep(delay_s)
        trained = len(_ranks(folder))
        _kill(victim, process.pid, first, folder, chance)
        process.communicate()
        # Ranks that lost their parent (the job's first process) are waited for by nobody.
        eventually(lambda: not any(map(alive, _ranks(folder))), within_s=60)
    assert process.returncode == exit_code(victim)
    codes = json.loads((folder / "codes").read_text()) if (folder / "codes").exists() else None
    assert {"worker": [-9, -9], "supervisor": [0, 0], "both": [-9, -9], "job": None}[victim] == codes
    for rank in range(2):
        whole = expected[rank].splitlines(keepends=True)[: WHOLE if victim == "supervisor" else None]
        assert "".join(whole).startswith(_computed(folder, rank))
        assert victim != "supervisor" or _computed(folder, rank) == "".join(whole)
    _check_folder(path, {rank: _computed(folder, rank).count("\n") for rank in range(2)}, at_least=trained)


def _ranks(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.glob("rank-*")) if path.read_text()]


def _computed(folder: Path, rank: int) -> str:
    """Whole lines of the losses a rank wrote: one for each step."""
    path = folder / f"losses-{rank}"
    before, newline, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    return before + newline


def _kill(victim: str, supervisor: int, first: int, folder: Path, chance: random.Random) -> None:
    """Everybody is there to be killed; that they died of it shows in the exit codes."""
    worker = [chance.choice(_ranks(folder))] if victim in ("worker", "both") else []
    pids = {"worker": worker, "supervisor": [supervisor], "both": [supervisor, *worker], "job": [first]}[victim]
    assert all(map(alive, pids))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _job(process: subprocess.Popen[bytes]) -> int | None:
    """The job's first process, found by its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process.pid and words[1:2] and words[1].endswith(b"job.py"):
            return int(path.parent.name)
    return None


# -- what is in the folder -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """What one process left."""

    rank: int
    steps: list[StepRecord]
    records: list[Record]


def _check_folder(path: Path, done: dict[int, int], *, at_least: int) -> None:
    """*done*: steps each rank finished by its own account; *at_least* so many ranks had been training."""
    read_manifest(path)
    left = [_check_process(files) for files in find_processes(path)]
    assert len({one.rank for one in left}) == len(left), "a process for each rank"
    by_rank = {one.rank: one for one in left}
    assert len(by_rank) >= at_least
    for rank, count in done.items():
        if count:
            _check_steps(by_rank[rank], count)
    for samples in (path / "nodes").glob("*.samples"):
        if samples.stat().st_size:
            list(read_samples(samples)[1])
    errors = path / "errors.jsonl"
    assert not errors.exists(), errors.read_text()
    from ddiag import api

    summed = {one.rank: len(one.steps) for one in left if one.steps}
    if summed:
        table = api.load([str(path)]).table("step_summaries")
        assert dict(table.group_by("rank").len().iter_rows()) == summed
    else:
        with contextlib.suppress(InputError):  # nothing to read yet, which it says
            api.load([str(path)])


def _check_steps(left: Left, done: int) -> None:
    """The rank finished *done* steps, and perhaps one more whose loss it could not write any more."""
    summaries = len(left.steps)
    # The first step is held back until the second one's end shows that it was one.
    assert summaries in ((0, 1, 2) if done == 1 else (done, done + 1))
    calls = Counter(one.step for one in left.records if one.kind == Kind.COLLECTIVE and one.op == Op.ALL_REDUCE)
    seen = [one.step for one in left.steps if one.comm_count != UNKNOWN]
    assert seen[:2] == list(range(summaries))[:2]
    assert {step: calls[step] for step in seen} == dict.fromkeys(seen, 1), "one bucket"
    phases = {one.step for one in left.records if one.kind == Kind.PHASE}
    assert phases >= set(range(done))


def _check_process(files: ProcessFiles) -> Left:
    """Up to the last record: step summaries without a gap, records without one, texts and facts line by line."""
    records, summaries = [], []
    for path in (files.ring, files.native_ring):
        data = path.read_bytes() if path.exists() else b""
        if data.strip(b"\0"):  # else killed between creating the file and writing its header
            found = ring.unpack_records(data, ring.unpack_header(data).capacity)
            indices = [record.index for record in found]
            assert not indices or indices == list(range(indices[0], indices[0] + len(indices)))
            records += found
    if files.steps.exists() and files.steps.stat().st_size:
        summaries = steps.unpack(files.steps.read_bytes())
        assert [one.step for one in summaries] == list(range(len(summaries)))
    if files.names.exists():
        names.decode(files.names.read_bytes())
    if files.facts.exists():
        *lines, _unfinished = files.facts.read_bytes().split(b"\n")
        assert all(isinstance(json.loads(line), dict) for line in lines)
    return Left(files.rank, summaries, records)
