"""Real trainings under the recorder's bootstrap, without a supervisor: by environment variables alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ddiag.schema import ring, steps
from ddiag.schema.folder import ProcessFiles, find_processes
from ddiag.schema.phases import Kind, Phase
from ddiag.schema.ring import Record
from ddiag.schema.steps import StepRecord

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
BOOTSTRAP = REPOSITORY / "ddiag" / "capture" / "bootstrap"


def environment(run: Path, **more: str) -> dict[str, str]:
    """What a supervisor gives to the job."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DDIAG_", "COV_", "PYTEST"))}
    return kept | {"PYTHONPATH": str(BOOTSTRAP), "DDIAG_RUN": str(run), "OMP_NUM_THREADS": "1"} | more


def torchrun(run: Path, script: str, *arguments: str, ranks: int = 2, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", str(SCRIPTS / script), *arguments]
    return execute(command, environment(run, **more))


def execute(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=150, check=False)


def truth(run: Path, rank: int) -> Any:
    """What the script counted itself."""
    return json.loads((run / f"truth-{rank}.json").read_text())


def processes(run: Path) -> dict[int, ProcessFiles]:
    """By rank; every rank must have left exactly one set of files."""
    found = find_processes(run)
    assert len({files.rank for files in found}) == len(found), found
    return {files.rank: files for files in found}


def steps_of(files: ProcessFiles) -> list[StepRecord]:
    return steps.unpack(files.steps.read_bytes())


def records(files: ProcessFiles, kind: Kind | None = None) -> list[Record]:
    data = files.ring.read_bytes()
    found = ring.unpack_records(data, ring.unpack_header(data).capacity)
    return [record for record in found if kind is None or record.kind == kind]


def phase_names(files: ProcessFiles) -> list[str]:
    return [Phase(record.op).name for record in records(files, Kind.PHASE)]


def errors(run: Path) -> str:
    path = run / "errors.jsonl"
    return path.read_text() if path.exists() else ""
