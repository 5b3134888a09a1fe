"""What the recorder costs a training: ``python -m tools.bench_recorder`` (``make bench`` runs it).

Two ranks (gloo) train with the recorder switched on and off between blocks of steps of one process group, in every
tier this torch has, TraceML beside it where it can be installed. CPU time of the training thread is what is judged,
since wall time on a shared machine shows the others' work; it is printed too. Exit code 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
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
STEP_SHARE = 0.01
MARK_US = 2.0
CALL_US = {"native": 2.0, "hooks": 15.0}
"""CPU time added to the issuing thread per asynchronous collective; the sampling tier is held to its share alone."""
RSS_MB = 10.0
OUTSIDE_SHARE = 0.01
SHORTEST_STEP_MS = 50.0
CLOCKS = {"thread": "CPU of the training thread", "process": "CPU of all threads", "wall": "wall time"}
JUDGED = "thread"
"""What makes a step longer, and the only one that other work on the machine hardly moves."""


@dataclass(frozen=True)
class Wanted:
    """What the job shall compare."""

    modes: list[str]
    rounds: int
    steps: int
    """Counted ones of a block."""
    device: str = "cpu"


@dataclass(frozen=True)
class Estimate:
    """Added part of the step, with the middle 95 % of resampled rounds."""

    share: float
    low: float
    high: float

    def judge(self, limit: float) -> str:
        if self.high < limit:
            return "PASS"
        return "FAIL" if self.low > limit else "UNDECIDED (noise)"


class Verdicts:
    """Prints lines and remembers broken limits."""

    def __init__(self) -> None:
        self.failed = False

    def line(self, what: str, figure: str, judged: str = "") -> None:
        self.failed = self.failed or judged.startswith("FAIL")
        print(f"  {what:<44}{figure:<34}{judged}", flush=True)

    def at_most(self, what: str, value: float, limit: float, unit: str) -> None:
        judged = "PASS" if value <= limit else "FAIL"
        self.line(what, f"{value:.2f} {unit} (limit {limit:g})", judged)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_recorder", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24, help="counted steps of a block")
    parser.add_argument("--python", default=sys.executable, help="whose torch is measured")
    parser.add_argument("--tiers", help="comma-separated; default: all this torch has")
    parser.add_argument("--no-traceml", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load average {load:.1f} before the benchmark")
    verdicts = Verdicts()
    tiers = options.tiers.split(",") if options.tiers else tiers_of(options.python)
    for tier in tiers:
        # Each in a process group of its own: a native kernel can be stopped, not unloaded.
        wanted = Wanted(["off", tier], options.rounds, options.steps)
        report(measure(torchrun(options.python), wanted), tier, verdicts)
    outside(options.python, verdicts)
    if not options.no_traceml:
        beside(options, verdicts)
    return int(verdicts.failed)


# -- measuring -----------------------------------------------------------------------------------------------------


def tiers_of(python: str) -> list[str]:
    """Tiers that can run with the torch of *python*, best first."""
    code = (
        "import torch.version as version; from ddiag.capture.native.build import cached;"
        "import torch; print(int(cached(version).exists()), torch.__version__)"
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


def measure(command: list[str], wanted: Wanted, *, ranks: int = 2, **more: str) -> list[dict[str, Any]]:
    """What each rank found."""
    with tempfile.TemporaryDirectory() as folder:
        given = [f"--out={folder}", f"--modes={','.join(wanted.modes)}", f"--rounds={wanted.rounds}"]
        given += [f"--steps={wanted.steps}", f"--device={wanted.device}"]
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


def added(found: list[dict[str, Any]], mode: str, clock: str) -> Estimate:
    """The part of the step that *mode* adds, from block means paired within each round of each rank."""
    pairs = [(one[mode][clock], one["off"][clock]) for rank in found for one in rank["rounds"]]
    shares = np.array([on / off - 1 for on, off in pairs])
    random = np.random.default_rng(0)
    resampled = np.median(random.choice(shares, (4000, len(shares))), axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(float(np.median(shares)), float(low), float(high))


# -- saying --------------------------------------------------------------------------------------------------------


def report(found: list[dict[str, Any]], tier: str, verdicts: Verdicts) -> None:
    off = {clock: statistics.median(one["off"][clock] for rank in found for one in rank["rounds"]) for clock in CLOCKS}
    print(f"tier {tier}: {len(found[0]['rounds'])} rounds on {len(found)} ranks; a step has 34 collectives and takes")
    print(
        f"  {off['thread']:.1f} ms CPU of the training thread, {off['process']:.1f} of all, {off['wall']:.1f} ms wall"
    )
    if off["process"] < SHORTEST_STEP_MS:
        print(f"  that is shorter than {SHORTEST_STEP_MS:g} ms: shares are overstated")
    shares(found, tier, verdicts, judged=True)
    for part, what in (("issue", "async collective"), ("process", "async collective, all threads"), ("wait", "wait")):
        more = min(one["micro"][tier]["collective"][part] - one["micro"]["off"]["collective"][part] for one in found)
        if part == "issue" and tier in CALL_US:
            verdicts.at_most(f"per {what}", more, CALL_US[tier], "µs")
        else:
            verdicts.line(f"per {what}", f"{more:.2f} µs")
    verdicts.at_most("per phase mark", min(one["micro"][tier]["mark"] for one in found), MARK_US, "µs")
    grown = max(one["micro"][tier]["rss_mb"] - one["micro"]["off"]["rss_mb"] for one in found)
    verdicts.at_most("resident set, rings full", grown, RSS_MB, "MB")


def shares(found: list[dict[str, Any]], mode: str, verdicts: Verdicts, *, judged: bool) -> None:
    for clock, what in CLOCKS.items():
        one = added(found, mode, clock)
        figure = f"{one.share:+.2%}  [{one.low:+.2%}, {one.high:+.2%}]"
        verdicts.line(f"step, {what}", figure, one.judge(STEP_SHARE) if judged and clock == JUDGED else "")


# -- outside the training process ----------------------------------------------------------------------------------


def outside(python: str, verdicts: Verdicts) -> None:
    """Part of one core that ``ddiag run`` and what it starts for itself use while the job trains."""
    if python != sys.executable:
        return
    with tempfile.TemporaryDirectory() as folder:
        recorder = [python, "-m", "ddiag", "run", "--no-report", f"--out={folder}/runs", "--"]
        job = [*torchrun(python), f"--out={folder}", "--rounds=400"]
        with subprocess.Popen(
            [*recorder, *job], env=environment(), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(20)
            before, began = own_cpu_s(process.pid), time.monotonic()
            time.sleep(20)
            alive = process.poll() is None
            share = (own_cpu_s(process.pid) - before) / (time.monotonic() - began)
            process.terminate()
            process.wait(60)
        if not alive:
            verdicts.line("supervisor and sampler", "the job ended early", "UNDECIDED")
            return
        print("outside the training process")
        verdicts.at_most("supervisor and sampler, % of a core", share * 100, OUTSIDE_SHARE * 100, "%")


def own_cpu_s(root: int) -> float:
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


# -- TraceML -------------------------------------------------------------------------------------------------------


def beside(options: argparse.Namespace, verdicts: Verdicts) -> None:
    """The same job under TraceML's launcher: blocks with ``trace_step`` against blocks without.

    Its patches stay in place in both, so what they cost is not counted against it.
    """
    if not TRACEML_FOLDER.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*install, "--no-deps", f"--target={TRACEML_FOLDER}", *TRACEML], check=False)
        if done.returncode:
            print("TraceML could not be installed; it was not measured")
            return
    launcher = [options.python, "-m", "traceml_ai.launcher.cli", "run", "--nproc-per-node=2"]
    path = f"{REPOSITORY}{os.pathsep}{TRACEML_FOLDER}"
    wanted = Wanted(["off", "traceml"], options.rounds, options.steps)
    found = measure([*launcher, str(JOB), "--args"], wanted, PYTHONPATH=path)
    print(f"beside it: {TRACEML[0]} (no collectives, no per-rank ring; phases and memory of steps)")
    shares(found, "traceml", verdicts, judged=False)


if __name__ == "__main__":
    sys.exit(main())
