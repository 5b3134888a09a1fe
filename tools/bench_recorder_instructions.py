"""Counts the recorder's instructions with Valgrind, for ``python -m tools.bench_recorder --instructions``."""

from __future__ import annotations

import re
import shutil
import socket
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.bench_recorder_counted import CALLS, FEW_ROWS, MORE_ROWS
from tools.bench_recorder_measure import REPOSITORY, finished

COUNTED_JOB = Path(__file__).with_name("bench_recorder_counted.py")
LIMIT_S = 1200
_STUB = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void part(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
_PART = re.compile(r"^desc: Trigger: Client Request: (.*)$", re.MULTILINE)
_TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Instructions:
    """Of all threads together."""

    step: float
    """A step without the recorder, at the rows that are measured elsewhere."""
    added: float
    """Per step; of a tier that samples, in a step it does not look at."""
    looked: float
    """Per step that a sampling tier looks at; else the same."""
    collective: float
    wait: float
    mark: float

    def share(self, sampled: float) -> float:
        return (self.added + (self.looked - self.added) * sampled) / self.step


def why_not() -> str:
    """Why nothing can be counted here; empty when it can."""
    if shutil.which("valgrind") is None:
        return "valgrind is missing"
    if shutil.which("gcc") is None:
        return "gcc is missing"
    probe = subprocess.run(["gcc", "-E", "-x", "c", "-"], input=_STUB, text=True, capture_output=True, check=False)
    return "" if probe.returncode == 0 else "valgrind's headers are missing"


def count(python: str, tier: str, rows: int) -> Instructions:
    """Raises SystemExit when the counted job fails."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "stub.c"), Path(folder, "stub.so")
        source.write_text(_STUB, encoding="ascii")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        job = [python, str(COUNTED_JOB), f"--out={folder}", f"--mode={tier}", f"--library={library}"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
        code, output = finished(
            [*valgrind, *job], folder, limit_s=LIMIT_S, PYTHONHASHSEED="0", PYTHONPATH=str(REPOSITORY), **alone
        )
        if code:
            raise SystemExit(f"the counted job failed:\n{output[-3000:]}")
        return _instructions(_parts(Path(folder)), rows)


def _parts(folder: Path) -> dict[str, float]:
    """Median count of each named part."""
    found: dict[str, list[int]] = {}
    for path in folder.glob("counts.*"):
        text = path.read_text(encoding="utf-8", errors="replace")
        name, total = _PART.search(text), _TOTAL.search(text)
        if name and total:
            found.setdefault(name.group(1), []).append(int(total.group(1)))
    return {name: statistics.median(counts) for name, counts in found.items()}


def _instructions(parts: dict[str, float], rows: int) -> Instructions:
    few, more, off = parts["few rows"], parts["more rows"], parts["step off"]
    added = parts["step on"] - off
    return Instructions(
        step=few + (more - few) / (MORE_ROWS - FEW_ROWS) * (rows - FEW_ROWS),
        added=added,
        looked=parts.get("step looked", parts["step on"]) - off,
        collective=(parts["collectives on"] - parts["collectives off"]) / CALLS,
        wait=(parts["waits on"] - parts["waits off"]) / CALLS,
        mark=parts["marks on"] / CALLS / 2,
    )
