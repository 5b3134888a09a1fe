"""How fast a log of gigabytes is read: ``python -m tools.bench_logs`` writes one (seeded), reads it and judges.

The log is what eight ranks under torchrun --tee and a log shipper print: mostly their own lines, progress bars, some of
NCCL's, a few warnings, and at the end the time-outs, a traceback and the launcher's report. Exit code 1 below
``LEAST_MB_S`` per second of CPU (reading uses one thread; on an idle machine that is the wall time) or above
``MOST_RSS_BYTES``, or when the lines at the end are not found.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ddiag.ingest.logs.reader import read
from ddiag.ingest.sources import Source, open_text

LEAST_MB_S = 100
MOST_RSS_BYTES = 1 << 30
BLOCK_BYTES = 32 << 20
WORDS = (
    *("loss", "lr", "grad_norm", "tokens", "batch", "shard", "queue", "cache", "worker", "bucket", "layer", "expert"),
    *(
        "router",
        "sample",
        "prompt",
        "reward",
        "policy",
        "value",
        "state",
        "buffer",
        "stream",
        "offset",
        "index",
        "chunk",
    ),
    *("epoch", "mean", "max", "min", "of", "at", "in", "for", "with", "next", "done", "ready"),
)


def write_log(path: Path, size: int, seed: int) -> None:
    """A log of about *size* bytes: one block of common lines again and again, then how the job ended."""
    chance = random.Random(seed)
    block = _block(chance)
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(block)
        file.write("".join(_end()).encode())


def _block(chance: random.Random) -> bytes:
    parts: list[str] = []
    length = step = 0
    while length < BLOCK_BYTES:
        step += 1
        line = _line(chance, step)
        parts.append(line)
        length += len(line)
    return "".join(parts).encode()


def _line(chance: random.Random, step: int) -> str:
    kind, rank = chance.random(), chance.randrange(8)
    stamp = f"2026-03-14 09:{step // 6000 % 60:02d}:{step // 100 % 60:02d}"
    words = " ".join(chance.choice(WORDS) for _ in range(chance.randrange(6, 24)))
    if kind < 0.6:
        return f"{stamp} [rank{rank}]: {words} {chance.random():.4f}\n"
    if kind < 0.9:
        return f"[default{rank}]:{stamp},{chance.randrange(1000):03d} - INFO - {words}: {chance.randrange(10**6)}\n"
    if kind < 0.98:
        done = step % 1000
        return f"\rTrain: {done // 10:3d}%|{'#' * (done // 100)}| {done}/1000 [01:02<03:04, {chance.random():.2f}s/it]"
    if kind < 0.995:
        return f"node-7:4{rank}:5{rank} [{rank}] NCCL INFO Channel 0{rank}/0 : {rank}[{rank}] -> 3[3] via P2P/CUMEM\n"
    return f"[rank{rank}]: UserWarning: {words}\n"


def _end() -> list[str]:
    timeouts = [
        f"[rank{rank}]:[E314 10:00:0{rank}.000000001 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
        for rank in range(7)
    ]
    raised = [
        "[rank7]: Traceback (most recent call last):\n",
        '[rank7]:   File "/job/train.py", line 88, in step\n',
        "[rank7]: ValueError: planted\n",
    ]
    return ["\n", *raised, *timeouts]


def measured(path: Path) -> dict[str, float]:
    """Read *path* in this process: MB/s, peak resident bytes, and what was found at the end."""
    size = path.stat().st_size
    source = Source(str(path), bytes=size)
    began, worked = time.perf_counter(), time.process_time()
    with open_text(source) as text:
        clues = read(source, text)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    kinds = Counter(clues.tables["log_events"]["kind"].to_list())
    return {
        "mb": size / 1e6,
        "seconds": seconds,
        "mb_s": size / 1e6 / worked,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "timeouts": kinds["c10d.watchdog_timeout"],
        "exceptions": kinds["python.exception"],
        "lines": clues.read,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.read is not None:
        print(json.dumps(measured(chosen.read)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        write_log(path, int(chosen.gb * 1e9), chosen.seed)
        command = [sys.executable, "-m", "tools.bench_logs", "--read", str(path)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(
        f"{found['mb']:,.0f} MB, {found['lines']:,} lines in {found['seconds']:.1f} s: {found['mb_s']:.0f} MB/CPU-s "
        f"(at least {LEAST_MB_S}), peak {found['rss_bytes'] / 2**20:,.0f} MiB (at most {MOST_RSS_BYTES / 2**20:,.0f}); "
        f"{found['timeouts']} time-outs and {found['exceptions']} exception found at the end"
    )
    right = found["timeouts"] == 7 and found["exceptions"] == 1
    return 0 if right and found["mb_s"] >= LEAST_MB_S and found["rss_bytes"] <= MOST_RSS_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
