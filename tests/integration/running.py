"""Starting ``ddiag run`` as a user does, and the same command without it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
TORCHRUN = (PYTHON, "-m", "torch.distributed.run")
LIMIT_S = 150.0
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
if "FAILURES" in os.environ:  # torchrun's own store may still hold the addresses of the attempt before
    numbers = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store-{attempt}", **numbers)
else:
    dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
STEPS = int(os.environ.get("STEPS", "12"))
for step in range(STEPS):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(step, loss.item(), flush=True)
    if step == 5 and rank == 1 and attempt < int(os.environ.get("FAILURES", "0")):
        sys.exit(9)
    if step == 5 and "WAIT" in os.environ:
        open(f"waiting-{rank}-{os.getpid()}", "w").close()
        time.sleep(120)
dist.destroy_process_group()
"""
"""A DDP training whose losses rank 0 prints; it fails or waits where variables say so."""
T = TypeVar("T")


def environment(**more: str) -> dict[str, str]:
    """This process's, in which ddiag can be imported, and nothing that a surrounding run left behind."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDIAG_", "SLURM_", "PMI"))}
    after = kept.get("PYTHONPATH")
    path = f"{REPOSITORY}{os.pathsep}{after}" if after else str(REPOSITORY)
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TERM": "dumb", "DDIAG_BUILD": "0", **more}


def recorded(out: Path, *options: str) -> list[str]:
    """The words that go before a command to have it recorded below *out*."""
    return [PYTHON, "-m", "ddiag", "run", "--out", str(out), *options, "--"]


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """In a process group of its own, as a shell with job control starts a job."""
    defaults: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": environment(),
        "process_group": 0 if sys.version_info >= (3, 11) else None,
    }
    if sys.version_info < (3, 11):
        del defaults["process_group"]
        defaults["preexec_fn"] = os.setpgrp
    return subprocess.Popen(list(command), **{**defaults, **options})


def run(command: Sequence[str], *, given: bytes | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
    stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
    with start(command, stdin=stdin, **options) as process:
        try:
            out, err = process.communicate(given, timeout=LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def eventually(found: Callable[[], T | None], *, within_s: float = 60.0) -> T:
    """The first thing *found* finds."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        value = found()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("it never came")


def only_run(out: Path) -> Path:
    (folder,) = (path for path in out.iterdir() if not path.name.startswith("."))
    return folder


def alive(pid: int) -> bool:
    """It is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children(pid: int) -> list[int]:
    """Children of *pid*, found through /proc."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                stat = (path / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.name))
    return found


def without_ours(stderr: bytes) -> bytes:
    """What the job wrote: ddiag marks each of its own lines."""
    return re.sub(rb"ddiag: [^\n]*\n", b"", stderr)


def script(folder: Path, text: str, *, name: str = "job.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def outcome(done: subprocess.CompletedProcess[bytes]) -> tuple[int, bytes, bytes]:
    return done.returncode, done.stdout, without_ours(done.stderr)


def same_environment(seen: Mapping[str, str], given: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Variables that differ: (without, with)."""
    names = {*seen, *given}
    return {name: (given.get(name), seen.get(name)) for name in names if given.get(name) != seen.get(name)}
