"""Runs the jobs of ``tools.bench_recorder`` and works out what the recorder adds to a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
JOB = Path(__file__).with_name("bench_recorder_job.py")
TRACEML_FOLDER = REPOSITORY / ".bench" / "traceml"
TRACEML = ("traceml-ai==0.5.0", "pyyaml")
JOB_LIMIT_S = 1800
RESAMPLED = 4000

Found = list[dict[str, Any]]
"""What each rank found."""


@dataclass(frozen=True)
class Wanted:
    """What the job shall compare."""

    modes: list[str]
    rounds: int
    steps: int
    """Counted ones of a block."""
    device: str = "cpu"
    rows: int = 0
    """Of a batch, which make a step long; 0: the job's own number."""


@dataclass(frozen=True)
class Estimate:
    """Added part of the step, with the middle 95 % of resampled rounds."""

    share: float
    low: float
    high: float

    def judge(self, limit: float) -> str:
        if self.high < limit:
            return "PASS"
        return "FAIL" if self.low > limit else ""

    def within(self, limit: float) -> bool:
        return -limit < self.low and self.high < limit

    def __str__(self) -> str:
        return f"{self.share:+.2%}  [{self.low:+.2%}, {self.high:+.2%}]"


# -- running -------------------------------------------------------------------------------------------------------


def tiers_of(python: str) -> list[str]:
    """Tiers that can run with the torch of *python*, best first."""
    code = (
        "import torch.version as version; from ddiag.capture.native.build import cached;"
        "from ddiag.capture.hooks.c10d_native import OLDEST_TORCH;"
        "import torch; fits = tuple(map(int, torch.__version__.split('.')[:2])) >= OLDEST_TORCH;"
        "print(int(fits and cached(version).exists()), torch.__version__)"
    )
    built, version = subprocess.check_output([python, "-c", code], text=True, env=environment()).split()
    newer = tuple(int(part) for part in version.split(".")[:2]) >= (2, 14)
    if built == "0":
        print("no native kernel for this torch: python -m ddiag.capture.native build")
    return [*(["native"] if built == "1" else []), *(["hooks"] if newer else []), "dispatch"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DDIAG_")}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **more}


def torchrun(python: str, *, ranks: int = 2) -> list[str]:
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(JOB)]


def measure(command: list[str], wanted: Wanted, *, ranks: int = 2, **more: str) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        given = [f"--out={folder}", f"--modes={','.join(wanted.modes)}", f"--rounds={wanted.rounds}"]
        given += [f"--steps={wanted.steps}", f"--device={wanted.device}", f"--rows={wanted.rows}"]
        code, output = finished([*command, *given], folder, limit_s=JOB_LIMIT_S, **more)
        found = sorted(Path(folder).glob("rank*.json"))
        if code or len(found) < ranks:
            raise SystemExit(f"the measured job failed:\n{output[-3000:]}")
        return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def finished(command: list[str], folder: str, *, limit_s: float, **more: str) -> tuple[int, str]:
    """Exit code and output of a job; one that takes too long is asked to end, with everything it started."""
    with subprocess.Popen(
        command,
        env=environment(**more),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            output += f"\nit did not end within {limit_s:g} s"
    return process.returncode, output


def outside(python: str) -> float | None:
    """Part of one core that ``ddiag run`` and what it starts for itself use; None when the job ended early."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = [python, "-m", "ddiag", "run", "--no-report", f"--out={folder}/runs", "--"]
        job = [*torchrun(python), f"--out={folder}", "--rounds=400"]
        with subprocess.Popen(
            [*recorder, *job], env=environment(), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(20)
            before, began = _own_cpu_s(process.pid), time.monotonic()
            time.sleep(20)
            alive = process.poll() is None
            share = (_own_cpu_s(process.pid) - before) / (time.monotonic() - began)
            process.terminate()
            process.wait(60)
    return share if alive else None


def _own_cpu_s(root: int) -> float:
    """CPU seconds of *root* and those of its children that are ddiag's own, not the job's."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if b"ddiag" in words[1:4] and root in (int(path.name), int(fields[1])):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def traceml(python: str, rounds: int, steps: int) -> Found | str:
    """The same job under TraceML's launcher: blocks with ``trace_step`` against blocks without; or why not."""
    if not TRACEML_FOLDER.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*install, "--no-deps", f"--target={TRACEML_FOLDER}", *TRACEML], check=False)
        if done.returncode:
            return "TraceML could not be installed; it was not measured"
    launcher = [python, "-m", "traceml_ai.launcher.cli", "run", "--nproc-per-node=2"]
    path = f"{REPOSITORY}{os.pathsep}{TRACEML_FOLDER}"
    return measure([*launcher, str(JOB), "--args"], Wanted(["off", "traceml"], rounds, steps), PYTHONPATH=path)


# -- working out ---------------------------------------------------------------------------------------------------


def blocks(found: Found, mode: str, clock: str) -> Estimate:
    """From means of blocks of steps, paired within each round of each rank."""
    pairs = [(one[mode][clock], one["off"][clock]) for rank in found for one in rank["rounds"]]
    return _estimate([(on / off - 1,) for on, off in pairs], (1.0,))


def turns(found: Found, kind: str, clock: str) -> Estimate:
    """From steps of one training whose hooks take turns, weighted by how often such steps are: those a sampling tier
    looks at, and those in which memory is read.
    """
    sampled, read = (float(np.mean([rank[what] for rank in found])) for what in ("sampled", "read"))
    sampled = sampled if "looked" in found[0]["turns"][0] else 0.0
    rows: list[tuple[float, ...]] = []
    for rank in found:
        for one in rank["turns"]:
            # What is judged is compared with both kinds of steps without the recorder, which halves their noise.
            off = one["off"][clock] if kind == "again" else (one["off"][clock] + one["again"][clock]) / 2
            looked, memory = (one.get(what, one[kind]) if kind == "on" else one[kind] for what in ("looked", "read"))
            rows.append(tuple(kind_of_step[clock] / off - 1 for kind_of_step in (one[kind], looked, memory)))
    return _estimate(rows, (1 - sampled - read, sampled, read))


def _estimate(rows: list[tuple[float, ...]], weights: tuple[float, ...]) -> Estimate:
    """The weighted sum of the columns' medians, and how far it moves when rows are drawn anew."""
    table = np.array(rows)
    drawn = np.random.default_rng(0).integers(0, len(table), (RESAMPLED, len(table)))
    resampled = np.median(table[drawn], axis=1) @ np.array(weights)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(float(np.median(table, axis=0) @ np.array(weights)), float(low), float(high))
