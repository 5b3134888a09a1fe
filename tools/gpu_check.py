"""The recorder on a machine with one GPU: ``python -m tools.gpu_check``, under eight minutes.

Records a DDP training over NCCL and compares the recording with what the job knows of itself: steps, collectives,
memory peaks, copies to the device, NVML samples, a profiler window; then measures what recording costs, on against off.
Exit code 0: all as it should be; 1: something is not; 2: there is no GPU here. ``--rehearse`` does the same on the CPU,
without what only a device has, to try the check itself; what recording costs is shown then, and not judged.

Needs torch, and nothing from a network: of this folder only. Without click the supervisor is started directly; without
polars the recording is compared, and not diagnosed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ddiag.schema import ring, steps
from ddiag.schema.folder import ERRORS, NODES, PROFILE, ProcessFiles, find_processes
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.samples import read_samples
from tools.bench_recorder import STEP_SHARE, Verdicts, shares
from tools.bench_recorder_measure import Wanted, finished, measure, torchrun

JOB = Path(__file__).with_name("gpu_check_job.py")
JOB_LIMIT_S = 180
WINDOW = (65, 67)
WARM_STEPS = 5
PEAK_TOLERANCE = 0.01
SEEN_COPIES = 0.8
"""Part of the copied bytes that the PCIe counter must show; it is read once a second."""
_RUN = """
import os, sys
from ddiag.supervise.supervisor import RunOptions, supervise
first, last = map(int, sys.argv[2:4])
options = RunOptions(out=sys.argv[1], report=False, profile_steps=(first, last), sample_interval_s=0.5)
sys.exit(supervise(sys.argv[4:], options, environment=os.environ, say=print).shell_code)
"""
"""``ddiag run`` without click."""
_ASK = "import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else '')"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, to try this check itself")
    parser.add_argument("--rounds", type=int, default=6, help="of the comparison on against off")
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
        run = _record(Path(folder), device)
        _compare(run, json.loads(Path(folder, "truth.json").read_text(encoding="utf-8")), verdicts)
        _diagnose(run, verdicts)
    print("cost, on against off")
    wanted = Wanted(["off", "dispatch"], options.rounds, 12, device)
    found = measure(torchrun(sys.executable, ranks=1), wanted, ranks=1)
    share = shares(found, "dispatch", verdicts)
    judged = "not judged" if options.rehearse else share.judge(STEP_SHARE) or "UNDECIDED (noise)"
    verdicts.line(f"less than {STEP_SHARE:.0%} of a step", str(share), judged)
    print(f"took {time.monotonic() - began:.0f} s")
    return int(verdicts.failed)


def _diagnose(run: Path, verdicts: Verdicts) -> None:
    if find_spec("polars") is None:
        verdicts.line("diagnosis", "not made: polars is not installed here")
        return
    from ddiag.api import diagnose, load

    diagnosis = diagnose(load([str(run)]))
    verdicts.line("diagnosis", f"{diagnosis.verdict.status.value}: {diagnosis.verdict.headline}"[:100])


def _device() -> tuple[str, str]:
    """(why there is none, its name)."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return "torch cannot be imported", ""
    version, _, name = done.stdout.strip().partition(" ")
    return ("" if name else f"no GPU that torch {version} can use"), name


def _record(folder: Path, device: str) -> Path:
    """Record the job; its run folder."""
    first, last = WINDOW
    out = f"{folder}/runs"
    if find_spec("click") is None:
        recorder = [sys.executable, "-c", _RUN, out, str(first), str(last)]
    else:
        recorder = [sys.executable, "-m", "ddiag", "run", "--no-report", f"--out={out}", "--sample-interval=0.5"]
        recorder += [f"--profile-steps={first}:{last}", "--"]
    *launcher, _ = torchrun(sys.executable, ranks=1)
    job = [*launcher, str(JOB), f"--out={folder}", f"--device={device}"]
    code, output = finished([*recorder, *job], str(folder), limit_s=JOB_LIMIT_S, DDIAG_BUILD="0")
    if code:
        raise SystemExit(f"the recorded job failed:\n{output[-3000:]}")
    return next(path.parent for path in (folder / "runs").glob("*/run.json"))


def _compare(run: Path, truth: dict[str, Any], verdicts: Verdicts) -> None:
    (files,) = find_processes(run)
    found = steps.unpack(files.steps.read_bytes())
    _is(verdicts, "steps", len(found), truth["steps"])
    _collectives(files, truth, verdicts)
    errors = (run / ERRORS).read_text(encoding="utf-8").splitlines() if (run / ERRORS).exists() else []
    _is(verdicts, "errors caught by the recorder", len(errors), 0)
    for line in errors[:3]:
        print(f"    {line[:300]}")
    traces = list((run / PROFILE).rglob("*.json.gz"))
    _is(verdicts, "traces of the profiler window", len(traces), 1)
    if truth["copied_bytes"]:
        _memory(found, truth, verdicts)
        _copies(found, run, truth, verdicts)
        kernels = sum(one.get("cat") == "kernel" for path in traces for one in _events(path))
        _at_least(verdicts, "kernels in the profiler window", kernels, 1)


def _events(trace: Path) -> list[dict[str, Any]]:
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def _collectives(files: ProcessFiles, truth: dict[str, Any], verdicts: Verdicts) -> None:
    """Every layer is a bucket; the tier may look at some steps only."""
    records = []
    for path in (files.ring, files.native_ring):
        if path.exists():
            data = path.read_bytes()
            records += ring.unpack_records(data, ring.unpack_header(data).capacity)
    reduced = [one for one in records if one.kind == Kind.COLLECTIVE and one.op == Op.ALL_REDUCE]
    per_step: dict[int, int] = {}
    for one in reduced:
        per_step[one.step] = per_step.get(one.step, 0) + 1
    looked = {count for step, count in per_step.items() if step >= WARM_STEPS}
    _is(verdicts, "gradient reductions per recorded step", sorted(looked), [truth["layers"]])
    ended = sum(one.state == State.DONE for one in reduced)
    timed = sum(bool(one.flags & Flag.DEVICE_TIMED) for one in reduced)
    verdicts.line(
        "reductions recorded", f"{len(reduced)} in {len(per_step)} steps; {ended} ended, {timed} device-timed"
    )


def _memory(found: list[steps.StepRecord], truth: dict[str, Any], verdicts: Verdicts) -> None:
    """The allocator's own peak: the job reads it at the same places and resets nothing."""
    worst = max(
        abs(one.device_peak_allocated_bytes / true - 1)
        for one, true in zip(found[1:], truth["peaks"][1:], strict=False)
    )
    verdicts.at_most("memory peak, worst step, off by", worst, PEAK_TOLERANCE, "of it")


def _copies(found: list[steps.StepRecord], run: Path, truth: dict[str, Any], verdicts: Verdicts) -> None:
    copying = [one.phase_ns[Phase.H2D] for one in found if one.phase_ns[Phase.H2D]]
    if not copying:
        verdicts.line("copies to the device", "no step has any", "FAIL")
        return
    rate = truth["copied_bytes"] / sum(copying)
    verdicts.line("copies to the device", f"{rate:.1f} GB/s in {len(copying)} steps")
    samples = [entry for path in (run / NODES).glob("*.samples") for entry in read_samples(path)[1]]
    devices = [one["devices"][0] for one in samples if one.get("kind") == "sample" and one.get("devices")]
    _at_least(verdicts, "samples of the device", len(devices), 5)
    if not devices:
        return
    known = sorted({key for one in devices for key in one})
    verdicts.line("NVML told", " ".join(known))
    _at_least(verdicts, "highest utilisation, %", max(one.get("util", 0) for one in devices), 1)
    received = [one["pcie_rx_bytes"] for one in devices if "pcie_rx_bytes" in one]
    if received:
        seen = (received[-1] - received[0]) / truth["copied_bytes"]
        _at_least(verdicts, "copied bytes seen on PCIe, part", round(seen, 3), SEEN_COPIES)


def _is(verdicts: Verdicts, what: str, value: object, wanted: object) -> None:
    verdicts.line(what, f"{value} (should be {wanted})", "PASS" if value == wanted else "FAIL")


def _at_least(verdicts: Verdicts, what: str, value: float, least: float) -> None:
    verdicts.line(what, f"{value} (at least {least})", "PASS" if value >= least else "FAIL")


if __name__ == "__main__":
    sys.exit(main())
