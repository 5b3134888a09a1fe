"""Run folders whose ranks and supervisors tell of environment, packages and configurations what a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.recordings import Writer, files_of, healthy, write_run

PROCESS = {"torch": "2.13.0+cu128", "cuda": "12.8", "executable": "/env/bin/python", "packages": {"numpy": "2.1.0"}}
NODE = {
    "host": "node0",
    "software": {"executable": "/env/bin/python3", "packages": {"torch": "1.0", "nvidia-nccl-cu12": "2.27.3"}},
    "environment": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"},
    "limits": {"memlock": [65536, 65536], "nofile": [-1, -1], "shm_bytes": 1 << 26, "shm_free_bytes": 1 << 20},
}


def record(
    folder: Path,
    *told_by: Mapping[str, Any],
    node: Mapping[str, Any] | None = None,
    devices: bool = True,
    steps: int = 12,
) -> Path:
    """A healthy run whose i-th rank also tells the facts *told_by[i]*, and whose supervisor wrote *node*."""
    write_run(folder)
    held = {"device_bytes": 1 << 30, "reserved_bytes": 1 << 30} if devices else {}
    for plan, facts_of_rank in zip(healthy(len(told_by), steps=steps, **held), told_by, strict=True):
        files = files_of(folder, plan)
        files.folder.mkdir(parents=True, exist_ok=True)
        writer = Writer(files, plan)
        for kind, values in facts_of_rank.items():
            writer.facts.write(kind, **values)
        for step in range(plan.steps):
            writer.step(step)
        writer.ring.close(writer.now)
    if node is not None:
        (folder / "env.json").write_text(json.dumps(node))
    return folder


def process(**more: Any) -> dict[str, Any]:
    return {"process": {**PROCESS, **more}}


def group(backend: str) -> dict[str, Any]:
    return {"id": 0, "name": "0", "desc": "default_pg", "backend": backend, "size": 2, "ranks": [0, 1]}
