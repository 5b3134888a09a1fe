"""Processes of a recorded job are killed at random moments: every run folder reads, and the job computes the same."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddiag.errors import InputError
from ddiag.schema import names, ring, steps
from ddiag.schema.folder import ProcessFiles, find_processes, read_manifest
from ddiag.schema.samples import read_samples
from tests.integration.running import PYTHON, alive, environment, eventually, recorded, run, script, start

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("chaos"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]

STEPS = 60
JOB = f"""
import os, sys, time
import torch, torch.distributed as dist

def train(rank):
    dist.init_process_group("gloo", init_method=f"file://{{os.getcwd()}}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with open(f"rank-{{rank}}", "w") as file:
        file.write(str(os.getpid()))
    with open(f"losses-{{rank}}", "w") as losses:
        for step in range({STEPS}):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 64)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.write(f"{{loss.item():.17g}}\\n")
            losses.flush()
            time.sleep(0.02)

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
sys.exit(1 if any(codes) else 0)
"""
VICTIMS = ("worker", "supervisor", "both", "job")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of both ranks without ddiag and without killing."""
    folder = tmp_path_factory.mktemp("bare")
    done = run([PYTHON, script(folder, JOB)], cwd=folder)
    assert done.returncode == 0, done.stderr
    return [(folder / f"losses-{rank}").read_text() for rank in range(2)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_a_random_moment(seed: int, tmp_path: Path, expected: list[str]) -> None:
    _kill_and_read(seed, tmp_path, expected)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 50))
def test_kills_at_many_random_moments(seed: int, tmp_path: Path, expected: list[str]) -> None:
    _kill_and_read(seed, tmp_path, expected)


def _kill_and_read(seed: int, folder: Path, expected: list[str]) -> None:
    chance = random.Random(seed)
    victim = VICTIMS[seed % len(VICTIMS)]
    started = chance.random() < 0.7
    delay_s = chance.uniform(0.0, 1.5 if started else 3.0)
    command = [*recorded(folder / "runs", "--sample-interval", "0.1", "--no-report"), PYTHON, script(folder, JOB)]
    with start(command, cwd=folder, env=environment()) as process:
        path = eventually(lambda: next(iter((folder / "runs").glob("*/run.json")), None)).parent
        if started or victim in ("worker", "both"):
            eventually(lambda: len(_ranks(folder)) == 2, within_s=120)
        time.sleep(delay_s)
        victims = _kill(victim, process, folder, chance)
        _end(process, folder)
    _check_folder(path)
    for rank in range(2):
        losses = folder / f"losses-{rank}"
        computed = losses.read_text() if losses.exists() else ""
        if victims == "nobody of the job":
            assert computed == expected[rank]
        else:
            assert expected[rank].startswith(computed.rpartition("\n")[0])


def _ranks(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.glob("rank-*")) if path.read_text()]


def _kill(victim: str, process: subprocess.Popen[bytes], folder: Path, chance: random.Random) -> str:
    pids = {
        "worker": lambda: [chance.choice(_ranks(folder))],
        "supervisor": lambda: [process.pid],
        "both": lambda: [process.pid, chance.choice(_ranks(folder))],
        "job": lambda: _job(process),
    }[victim]()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it had ended by itself
    return "nobody of the job" if victim == "supervisor" else "somebody of it"


def _job(process: subprocess.Popen[bytes]) -> list[int]:
    """The job's first process, found by its command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process.pid and words[1:2] and words[1].endswith(b"job.py"):
            found.append(int(path.parent.name))
    return found


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until everybody is gone; ranks that lost their parent (the job's first process) wait for nobody."""
    process.communicate()
    eventually(lambda: not any(map(alive, _ranks(folder))), within_s=60)


def _check_folder(path: Path) -> None:
    read_manifest(path)
    processes = find_processes(path)
    for files in processes:
        _check_process(files)
    for samples in (path / "nodes").glob("*.samples"):
        if samples.stat().st_size:
            list(read_samples(samples)[1])
    errors = path / "errors.jsonl"
    assert not errors.exists(), errors.read_text()
    from ddiag import api

    trained = {files.rank for files in processes if _summaries(files) > 1}
    if trained:
        assert set(api.load([str(path)]).table("ranks")["rank"].to_list()) >= trained
    else:
        with contextlib.suppress(InputError):  # nothing to read yet, which it says
            api.load([str(path)])


def _summaries(files: ProcessFiles) -> int:
    return len(steps.unpack(files.steps.read_bytes())) if files.steps.exists() and files.steps.stat().st_size else 0


def _check_process(files: ProcessFiles) -> None:
    """Up to the last record: step summaries without a gap, records of every recent step."""
    data = files.ring.read_bytes()
    if not data.strip(b"\0"):
        return  # killed between creating the file and writing its header
    header = ring.unpack_header(data)
    records = ring.unpack_records(data, header.capacity)
    indices = [record.index for record in records]
    assert indices == list(range(indices[0], indices[0] + len(indices))) if indices else True
    for path in (files.native_ring,):
        if path.exists() and path.stat().st_size:
            native = path.read_bytes()
            ring.unpack_records(native, ring.unpack_header(native).capacity)
    if files.steps.exists() and files.steps.stat().st_size:
        summaries = steps.unpack(files.steps.read_bytes())
        assert [one.step for one in summaries] == list(range(len(summaries)))
        if summaries:
            assert max(record.step for record in records) >= summaries[-1].step
    if files.names.exists():
        names.decode(files.names.read_bytes())
    if files.facts.exists():
        *lines, _unfinished = files.facts.read_bytes().split(b"\n")
        assert all(isinstance(json.loads(line), dict) for line in lines)
