"""How long naming the culprit of a big hang takes: dumps in, diagnosis out, against torch's own analyzer.

    python -m tools.bench_hang [--ranks 64 128 256 512 1024] [--huge]

Every size is a job of its own in both layouts (one group of all ranks; TP8 x PP8 x DP), 2,000 entries per rank, in a
fresh process that reads, matches, reasons and prints. Judged: wall time and memory (of all its processes together) of
the largest job, and that the rank it names is the one that stopped. On a busy machine look at the CPU seconds, which
suffer less.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tools.bench_hang_dumps import Layout, one_group, three_ways, write_dumps

REPOSITORY = Path(__file__).resolve().parents[1]
RANKS, ENTRIES = (64, 128, 256, 512, 1024), 2000
HUGE_RANKS, HUGE_ENTRIES = 8192, 500
LIMIT_S, LIMIT_GB = 30.0, 4.0
TORCH_RANKS, TORCH_LIMIT_S = 128, 1800.0
LAYOUTS: dict[str, Callable[[int, int], Layout]] = {"one group": one_group, "TP8 x PP8 x DP": three_ways}
_SAMPLE_S = 0.2


@dataclass(frozen=True)
class Cost:
    """What one run took; memory is the largest sum over its processes."""

    wall_s: float
    cpu_s: float
    peak_gb: float
    code: int | None
    """Exit code; None when it was stopped at its time limit."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; 1 when a limit is broken or the wrong rank is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--huge", action="store_true", help=f"also {HUGE_RANKS:,} ranks x {HUGE_ENTRIES} entries")
    parser.add_argument("--no-torch", action="store_true", help="leave torch's analyzer out")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    print(f"{'layout':16}{'ranks':>7}{'entries':>10}{'dumps':>9}{'wall':>10}{'CPU':>10}{'memory':>10}   named")
    passed: list[bool] = []
    for title, layout_of in LAYOUTS.items():
        costs = {ranks: _ours(title, layout_of(ranks, given.seed), given.entries, passed) for ranks in given.ranks}
        print(f"{'':16}growth: {_growth(costs)}")
        largest = costs[max(costs)]
        passed.append(_judge(f"{title}, {max(costs):,} ranks", largest))
    if given.huge:
        for title, layout_of in LAYOUTS.items():
            _ours(title, layout_of(HUGE_RANKS, given.seed), HUGE_ENTRIES, passed)
    if not given.no_torch:
        _against_torch(given.entries, given.seed)
    return 0 if all(passed) else 1


def _ours(title: str, layout: Layout, entries: int, passed: list[bool]) -> Cost:
    """One line of the table."""
    with tempfile.TemporaryDirectory(prefix="ddiag-bench-") as folder:
        size = write_dumps(Path(folder, "dumps").parent, layout, entries)
        answer = Path(folder, "..", f"{Path(folder).name}.json").resolve()
        cost = run([sys.executable, "-m", "ddiag", "hang", "--quiet", "--json", str(answer), folder])
        named = _named(answer)
    right = named == [layout.culprit]
    passed.append(right)
    print(
        f"{title:16}{layout.world:>7,}{entries:>10,}{size / 1e6:>6.0f} MB{cost.wall_s:>8.1f} s{cost.cpu_s:>8.1f} s"
        f"{cost.peak_gb:>7.2f} GB   {'rank' if right else 'WRONG:'} {', '.join(map(str, named)) or 'nobody'}"
        + ("" if right else f" (rank {layout.culprit} stopped)"),
        flush=True,
    )
    return cost


def _named(answer: Path) -> list[int]:
    """Ranks the first finding blames."""
    if not answer.is_file():
        return []
    findings: list[dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))["findings"]
    answer.unlink()
    ranks: list[int] = findings[0]["culprits"]["ranks"] if findings else []
    return ranks


def _growth(costs: dict[int, Cost]) -> str:
    ranks = sorted(costs)
    steps = [
        f"x{more / fewer:.0f} ranks = x{costs[more].cpu_s / costs[fewer].cpu_s:.1f} CPU"
        for fewer, more in pairwise(ranks)
    ]
    return ", ".join(steps) or "one size only"


def _judge(what: str, cost: Cost) -> bool:
    ok = cost.wall_s <= LIMIT_S and cost.peak_gb <= LIMIT_GB
    limits = f"at most {LIMIT_S:.0f} s and {LIMIT_GB:.0f} GB"
    print(f"{'PASS' if ok else 'FAIL'}  {what}: {cost.wall_s:.1f} s, {cost.peak_gb:.2f} GB ({limits})", flush=True)
    return ok


def _against_torch(entries: int, seed: int) -> None:
    """torch's analyzer on the same dumps; nothing is judged, its answer may be none."""
    program = shutil.which("torchfrtrace", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if program is None:
        print("torchfrtrace is not installed: no ratio")
        return
    for title, layout_of in LAYOUTS.items():
        with tempfile.TemporaryDirectory(prefix="ddiag-bench-") as folder:
            write_dumps(Path(folder), layout_of(TORCH_RANKS, seed), entries)
            ours = run([sys.executable, "-m", "ddiag", "hang", "--quiet", folder])
            theirs = run([program, folder, "-p", "comm_lib_trace_rank_"], limit_s=TORCH_LIMIT_S)
        how = "" if theirs.code == 0 else " (stopped)" if theirs.code is None else f" (ended with {theirs.code})"
        print(
            f"{title}, {TORCH_RANKS} ranks: torchfrtrace {theirs.cpu_s:.1f} s CPU, {theirs.peak_gb:.2f} GB{how}; "
            f"ddiag {ours.cpu_s:.1f} s CPU, {ours.peak_gb:.2f} GB: {theirs.cpu_s / ours.cpu_s:.1f} times as fast",
            flush=True,
        )


def run(command: Sequence[str], limit_s: float = 3600.0) -> Cost:
    """Run *command* in the repository and watch its processes."""
    begin, peak = time.perf_counter(), 0
    cpu: dict[int, float] = {}
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            if time.perf_counter() - begin > limit_s:
                process.kill()
                process.wait()
                return Cost(limit_s, sum(cpu.values()), peak / 2**30, None)
            peak = max(peak, _sample(root, cpu))
            time.sleep(_SAMPLE_S)
    return Cost(time.perf_counter() - begin, sum(cpu.values()), peak / 2**30, process.returncode)


def _sample(root: psutil.Process, cpu: dict[int, float]) -> int:
    """Resident bytes of *root* and its children now; their CPU seconds so far go to *cpu*."""
    total = 0
    try:
        for process in (root, *root.children(recursive=True)):
            times = process.cpu_times()
            cpu[process.pid] = times.user + times.system
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


if __name__ == "__main__":
    sys.exit(main())
