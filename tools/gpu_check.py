"""The recorder on a machine with one GPU: ``python -m tools.gpu_check``, under eight minutes.

Runs a DDP training over NCCL three times: bare, recorded, and recorded with ``--device-timing``. Results must be the
same bit by bit, those of a captured CUDA graph too; the recordings are compared with what the job knows of itself:
steps, collectives and their device times, memory peaks, copies to the device, NVML samples, a profiler window. Then
what recording costs is measured, on against off, in wall time: the machine is ours, and on a device the training
thread's own clock does not see the threads that run backward.

Exit code 0: all as it should be; 1: something is not; 2: there is no GPU here. What a machine itself does not offer
(NVML counters, profiling) is said, and held against nobody. ``--rehearse`` does the same on the CPU, without what only
a device has, to try the check itself; what recording costs is shown then, and not judged.

Needs torch and numpy, and nothing from a network: of this folder only. Without click the supervisor is started
directly; without polars the recording is compared, and not diagnosed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ddiag.schema import ring, steps
from ddiag.schema.folder import ERRORS, NODES, PROFILE, ProcessFiles, find_processes
from ddiag.schema.samples import read_samples
from tools import gpu_check_verdicts as judge
from tools.bench_recorder import STEP_SHARE, Verdicts, shares
from tools.bench_recorder_measure import Wanted, blocks, finished, measure, tiers_of, torchrun

JOB = Path(__file__).with_name("gpu_check_job.py")
JOB_LIMIT_S = 150
LIMIT_S = 480
STEPS_OF_ROUND, OTHER_STEPS = 96, 60
"""Steps that a round of the comparison takes, and those before it."""
START_S = 45
"""What starting it takes, and the loops that it measures besides."""
FEWEST_ROUNDS = 3
WINDOW = (65, 67)
_RUN = """
import os, sys
from ddiag.supervise.supervisor import RunOptions, supervise
first, last = map(int, sys.argv[2:4])
options = RunOptions(
    out=sys.argv[1], report=False, profile_steps=(first, last), sample_interval_s=0.5, device_timing=sys.argv[4] == "1"
)
sys.exit(supervise(sys.argv[5:], options, environment=os.environ, say=print).shell_code)
"""
"""``ddiag run`` without click."""
_ASK = "import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
_STEP = """
import time, torch
from torch import nn
from tools.bench_recorder_job import LAYERS, SHAPES
width, rows = SHAPES["cuda"]
model = nn.Sequential(*[nn.Linear(width, width) for _ in range(LAYERS)]).cuda()
batch = torch.randn(rows, width, device="cuda")
for _ in range(3):
    torch.cuda.synchronize(); began = time.monotonic()
    model(batch).square().mean().backward()
    torch.cuda.synchronize(); took = time.monotonic() - began
print(took, torch.cuda.get_device_properties(0).total_memory)
"""
"""How long a step of the comparison takes here; forward and backward are nearly all of it."""
_MEMORY = 30 << 30
"""What the comparison needs: a replica, its gradients, buckets and activations, beside one not yet let go of."""


@dataclass(frozen=True)
class Recorded:
    """A run folder and what the job said of itself."""

    run: Path
    truth: dict[str, Any]

    @property
    def files(self) -> ProcessFiles:
        (found,) = find_processes(self.run)
        return found

    @property
    def steps(self) -> list[steps.StepRecord]:
        return steps.unpack(self.files.steps.read_bytes())

    @property
    def records(self) -> list[ring.Record]:
        found = []
        for path in (self.files.ring, self.files.native_ring):
            if path.exists():
                data = path.read_bytes()
                found += ring.unpack_records(data, ring.unpack_header(data).capacity)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, to try this check itself")
    parser.add_argument("--rounds", type=int, default=6, help="of the comparison on against off, at most")
    options = parser.parse_args()
    began = time.monotonic()
    why_not, name = _device()
    if why_not and not options.rehearse:
        print(f"gpu_check: {why_not}; nothing was checked", file=sys.stderr)
        return 2
    device = "cpu" if options.rehearse else "cuda"
    print(f"checking the recorder on {name if device == 'cuda' else 'the CPU (rehearsal)'}", flush=True)
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        _check(Path(folder), device, verdicts)
    _cost(device, options.rounds, LIMIT_S - (time.monotonic() - began), verdicts)
    took = time.monotonic() - began
    judged = "not judged" if options.rehearse else "PASS" if took <= LIMIT_S else "FAIL"
    verdicts.line("time it took", f"{took:.0f} s (limit {LIMIT_S})", judged)
    return int(verdicts.failed)


def _check(folder: Path, device: str, verdicts: Verdicts) -> None:
    control = _run([], folder / "bare", device, "--control", DDIAG_DISABLE="1")
    print("recorded")
    plain = _record(folder / "recorded", device, timing=False)
    _compare(plain, control, verdicts)
    judge.unchanged(plain.truth, control, "recorded", verdicts)
    _diagnose(plain.run, verdicts)
    print("recorded with --device-timing")
    timed = _record(folder / "timed", device, timing=True)
    judge.unchanged(timed.truth, control, "timed", verdicts)
    _errors(timed.run, verdicts)
    if device == "cuda":
        judge.device_times(timed.records, timed.truth, verdicts)
        peaks = max(timed.truth["peaks"]), max(control["peaks"])
        verdicts.line("  memory peak with it, without us", " and ".join(f"{one / 2**20:.0f} MiB" for one in peaks))


def _device() -> tuple[str, str]:
    """(why there is none, its name)."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return "torch cannot be imported", ""
    version, _, name = done.stdout.strip().partition(" ")
    return ("" if name else f"no GPU that torch {version} can use"), name


def _run(before: Sequence[str], folder: Path, device: str, *more: str, **environment: str) -> dict[str, Any]:
    """The job, with *before* in front of it; what it says of itself."""
    folder.mkdir()
    *launcher, _ = torchrun(sys.executable, ranks=1)
    job = [*before, *launcher, str(JOB), f"--out={folder}", f"--device={device}", *more]
    same = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "DDIAG_BUILD": "0"}
    code, output = finished(job, str(folder), limit_s=JOB_LIMIT_S, **same, **environment)
    if code:
        raise SystemExit(f"the job failed:\n{output[-3000:]}")
    found: dict[str, Any] = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    return found


def _record(folder: Path, device: str, *, timing: bool) -> Recorded:
    first, last = WINDOW
    out = f"{folder}/runs"
    if find_spec("click") is None:
        recorder = [sys.executable, "-c", _RUN, out, str(first), str(last), str(int(timing))]
    else:
        recorder = [sys.executable, "-m", "ddiag", "run", "--no-report", f"--out={out}", "--sample-interval=0.5"]
        recorder += [f"--profile-steps={first}:{last}", *(["--device-timing"] if timing else []), "--"]
    truth = _run(recorder, folder, device)
    return Recorded(next(path.parent for path in (folder / "runs").glob("*/run.json")), truth)


def _compare(found: Recorded, control: dict[str, Any], verdicts: Verdicts) -> None:
    truth, summaries = found.truth, found.steps
    judge.equal(verdicts, "steps", len(summaries), truth["steps"])
    judge.collectives(found.records, truth, verdicts)
    _errors(found.run, verdicts)
    traces = list((found.run / PROFILE).rglob("*.json.gz"))
    judge.equal(verdicts, "traces of the profiler window", len(traces), 1)
    if not truth["copied_bytes"]:
        return
    judge.memory(summaries, truth, verdicts)
    judge.equal(verdicts, "memory peak, as without us", max(truth["peaks"]), max(control["peaks"]))
    judge.copies(summaries, truth, verdicts)
    entries = [entry for path in (found.run / NODES).glob("*.samples") for entry in read_samples(path)[1]]
    judge.samples(entries, truth, verdicts, nvml=find_spec("pynvml") is not None)
    judge.window(sum(one.get("cat") == "kernel" for path in traces for one in _events(path)), control, verdicts)


def _errors(run: Path, verdicts: Verdicts) -> None:
    errors = (run / ERRORS).read_text(encoding="utf-8").splitlines() if (run / ERRORS).exists() else []
    judge.equal(verdicts, "errors caught by the recorder", len(errors), 0)
    for line in errors[:3]:
        print(f"    {line[:300]}")


def _events(trace: Path) -> list[dict[str, Any]]:
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def _diagnose(run: Path, verdicts: Verdicts) -> None:
    if find_spec("polars") is None:
        verdicts.line("diagnosis", "not made: polars is not installed here")
        return
    from ddiag.api import diagnose, load

    diagnosis = diagnose(load([str(run)]))
    verdicts.line("diagnosis", f"{diagnosis.verdict.status.value}: {diagnosis.verdict.headline}"[:100])


def _cost(device: str, most: int, left_s: float, verdicts: Verdicts) -> None:
    """In the best tier this torch has here: what a user gets."""
    print("cost, on against off")
    rounds = most if device == "cpu" else _rounds(most, left_s)
    if rounds < min(most, FEWEST_ROUNDS):
        verdicts.line(
            f"less than {STEP_SHARE:.0%} of a step", "this device is too slow or small for it", judge.NOT_HERE
        )
        return
    tier = tiers_of(sys.executable)[0]
    found = measure(torchrun(sys.executable, ranks=1), Wanted(["off", tier], rounds, 12, device), ranks=1)
    share = shares(found, tier, verdicts)
    if device == "cuda":
        share = blocks(found, tier, "wall")
        judged = share.judge(STEP_SHARE) or "UNDECIDED (noise)"
    else:
        judged = "not judged"
    verdicts.line(f"less than {STEP_SHARE:.0%} of a step, tier {tier}", str(share), judged)


def _rounds(most: int, left_s: float) -> int:
    """As many as the time that is left allows."""
    environment = {**os.environ, "PYTHONPATH": str(JOB.parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", _STEP], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    if done.returncode:
        return 0
    step_s, memory = map(float, done.stdout.split()[-2:])
    if memory < _MEMORY:
        return 0
    return min(most, int(((left_s - START_S) / step_s - OTHER_STEPS) / STEPS_OF_ROUND))


if __name__ == "__main__":
    sys.exit(main())
