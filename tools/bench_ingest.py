"""How fast and how large reading a trace is: ddiag against HTA and against the floor, each in a process of its own.

    python tools/bench_ingest.py --hta-python .venv-hta/bin/python

The trace is a real one (DDP rank on V100, 54 MB) repeated four times: 206 MB, 864,254 events, 20 steps. The floor is
what any reader must do: unpack the file and scan the JSON of every event once, without keeping anything. Each program
runs --runs times and its fastest run (wall time, imports not counted) is judged; on a busy machine look at the CPU
seconds beside it, which suffer less.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = (
    REPOSITORY.parent / "shared/data/facebookresearch+HolisticTraceAnalysis/df_index_resolver/df_index_resolver.json.gz"
)
REPEATS, RANKS = 4, 8
MIN_SPEEDUP, MAX_MEMORY_SHARE, MAX_FLOORS, MIN_SCALING = 15.0, 0.25, 3.0, 1.4

MEASURE = """
import json, resource, sys, time

def peak_mb():
    try:
        lines = open("/proc/self/status").read().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def report(work):
    wall, cpu = time.perf_counter(), time.process_time()
    rows = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"wall_s": wall, "cpu_s": cpu + children.ru_utime + children.ru_stime, "peak_mb": peak_mb(),
                      "worker_mb": children.ru_maxrss / 1024, "rows": rows}))
"""
OURS = """
from ddiag.ingest import load
def work():
    run = load(sys.argv[2:], jobs=int(sys.argv[1]))
    return sum(run.table(name).height for name in ("ops", "launches", "kernels", "copies", "memory"))
report(work)
"""
FLOOR = """
from ddiag.ingest.events import raw_array
from ddiag.ingest.sources import Source, open_text
from ddiag.ingest.stream import CHUNK_BYTES
def work():
    events, rest = 0, b""
    with open_text(Source(sys.argv[1])) as text:
        rest = text.read(CHUNK_BYTES)
        rest = rest[rest.index(b'"traceEvents": [') + 16:]
        while data := text.read(CHUNK_BYTES):
            rest += data
            cut = rest.rindex(b"},\\n  {") + 1
            events += len(raw_array.decode(b"[%b]" % rest[:cut]))
            rest = rest[cut + 1:]
    return events + len(raw_array.decode(b"[%b]" % rest[:rest.index(b"\\n  ]")]))
report(work)
"""
HTA = """
from hta.trace_analysis import TraceAnalysis
def work():
    return len(TraceAnalysis(trace_files={1: sys.argv[1]}).t.get_trace(1))
report(work)
"""


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    peak_mb: float
    worker_mb: float
    rows: int

    def line(self, label: str) -> str:
        return f"{label:34}{self.wall_s:8.2f} s wall{self.cpu_s:8.2f} s CPU{self.peak_mb:8.0f} MB{self.rows:>12,} rows"


def measure(python: str, program: str, *arguments: str, runs: int = 1) -> Cost:
    """The fastest run of *program* in fresh interpreters; raises with the program's last words."""
    costs = []
    for _ in range(runs):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [python, "-c", MEASURE + program, *arguments], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            raise SystemExit(f"{python}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        costs.append(Cost(**json.loads(done.stdout.strip().splitlines()[-1])))
    return min(costs, key=lambda cost: cost.wall_s)


def event_text(event: dict[str, Any]) -> str:
    """One event laid out as Kineto writes it."""
    head = ", ".join(
        f"{json.dumps(key)}: {json.dumps(event[key])}" for key in event if key not in ("ts", "dur", "args")
    )
    times = ", ".join(f"{json.dumps(key)}: {json.dumps(event[key])}" for key in ("ts", "dur") if key in event)
    args = json.dumps(event.get("args", {}))[1:-1]
    parts = [head, *([times] if times else []), *([f'"args": {{\n      {args}\n    }}'] if "args" in event else [])]
    return "{\n    " + ",\n    ".join(parts) + "\n  }"


def repeated(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events four times, one after the other: times, ids and step numbers move on."""
    timed = [event for event in events if "ts" in event and event.get("ph") != "M"]
    span = max(e["ts"] + e.get("dur", 0) for e in timed) - min(e["ts"] for e in timed) + 1000
    ids = 1 + max((event.get("args") or {}).get("correlation", 0) for event in timed)
    steps = {event["name"] for event in timed if event["name"].startswith("ProfilerStep#")}
    yield from (event for event in events if event.get("ph") == "M")
    for repeat in range(REPEATS):
        for event in timed:
            copy = {**event, "ts": event["ts"] + repeat * span}
            if "args" in copy:
                moved = {
                    key: copy["args"][key] + repeat * ids
                    for key in ("correlation", "External id")
                    if key in copy["args"]
                }
                copy["args"] = {**copy["args"], **moved}
            if copy["name"] in steps:
                copy["name"] = f"ProfilerStep#{int(copy['name'].split('#')[1]) + repeat * len(steps)}"
            yield copy


def build(source: Path, folder: Path) -> tuple[Path, list[Path], int]:
    """The large trace, the same trace as eight ranks, and its unpacked size."""
    content = json.loads(gzip.decompress(source.read_bytes()))
    events = content.pop("traceEvents")
    content.pop("traceName", None)
    body = (
        '"traceEvents": [\n  ' + ",\n  ".join(map(event_text, repeated(events))) + '\n  ],\n  "traceName": "bench"\n}\n'
    )

    def head(rank: int, world: int) -> bytes:
        info = {"backend": "nccl", "rank": rank, "world_size": world}
        return (json.dumps({**content, "distributedInfo": info})[:-1] + ",\n  ").encode()

    large = folder / "large.json.gz"
    large.write_bytes(gzip.compress(head(1, 2) + body.encode(), 6))
    packed = gzip.compress(body.encode(), 6)
    ranks = [folder / f"rank{rank}.json.gz" for rank in range(RANKS)]
    for rank, path in enumerate(ranks):
        path.write_bytes(gzip.compress(head(rank, RANKS)) + packed)
    return large, ranks, len(head(1, 2)) + len(body)


def built_apart(source: Path, folder: Path) -> tuple[Path, list[Path], float]:
    """Build in a process of its own: what it needs of memory must not be seen in what is measured."""
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
    code += "from tools.bench_ingest import build\nfrom pathlib import Path\n"
    code += f"print(build(Path({str(source)!r}), Path({str(folder)!r}))[2])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return folder / "large.json.gz", [folder / f"rank{rank}.json.gz" for rank in range(RANKS)], int(done.stdout) / 1e6


def verdict(*, passed: bool, text: str) -> bool:
    print(f"{'PASS' if passed else 'FAIL'}  {text}")
    return passed


def ratio(over: Cost, under: Cost) -> str:
    return f"{over.wall_s / under.wall_s:.2f} × ({over.cpu_s / under.cpu_s:.2f} × by CPU time)"


def against_floor(floor: Cost, ours: Cost) -> bool:
    passed = ours.wall_s <= MAX_FLOORS * floor.wall_s
    return verdict(passed=passed, text=f"time over the floor's: {ratio(ours, floor)}; at most {MAX_FLOORS:g} ×")


def against_hta(python: str, trace: Path, ours: Cost, runs: int) -> list[bool]:
    probe = subprocess.run([python, "-c", "import hta"], capture_output=True, check=False)
    if probe.returncode:
        print("HTA: skipped, no interpreter that can import hta (give --hta-python)")
        return []
    hta = measure(python, HTA, str(trace), runs=runs)
    print(hta.line("HTA load"))
    share = ours.peak_mb / hta.peak_mb
    return [
        verdict(
            passed=hta.wall_s >= MIN_SPEEDUP * ours.wall_s,
            text=f"HTA's time over ours: {ratio(hta, ours)}; at least {MIN_SPEEDUP:g} ×",
        ),
        verdict(passed=share <= MAX_MEMORY_SHARE, text=f"memory over HTA's: {share:.2f}; at most {MAX_MEMORY_SHARE:g}"),
    ]


def scaling(ranks: list[Path]) -> bool:
    paths = [str(path) for path in ranks]
    one, two = (measure(sys.executable, OURS, str(jobs), *paths) for jobs in (1, 2))
    print(one.line(f"ddiag, {RANKS} ranks, 1 process"))
    print(two.line(f"ddiag, {RANKS} ranks, 2 processes") + f"   (worker {two.worker_mb:.0f} MB)")
    gain = one.wall_s / two.wall_s
    return verdict(
        passed=gain >= MIN_SCALING, text=f"2 processes are {gain:.2f} × as fast as 1 (at least {MIN_SCALING:g} ×)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta-python", default=sys.executable, help="interpreter that has hta (default: this one)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="trace to repeat")
    parser.add_argument("--runs", type=int, default=3, help="runs of each program; the fastest counts")
    options = parser.parse_args()
    if not options.source.exists():
        print(f"nothing to measure: {options.source} is not there (give --source)")
        return 2
    with tempfile.TemporaryDirectory() as name:
        trace, ranks, size_mb = built_apart(options.source, Path(name))
        packed_mb = trace.stat().st_size / 1e6
        print(f"trace: {size_mb:.0f} MB of JSON, {packed_mb:.0f} MB packed; load average {os.getloadavg()[0]:.1f}")
        floor = measure(sys.executable, FLOOR, str(trace), runs=options.runs)
        ours = measure(sys.executable, OURS, "1", str(trace), runs=options.runs)
        print(floor.line("floor: unpack and scan"))
        print(ours.line("ddiag load"))
        passed = [against_floor(floor, ours), *against_hta(options.hta_python, trace, ours, options.runs)]
        passed.append(scaling(ranks))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
