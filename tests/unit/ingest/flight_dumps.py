"""Flight Recorder dumps as each torch version writes them, built from a healthy default."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ddiag.ingest import load
from ddiag.model.run import Run

NS = 1_790_000_000_000_000_000
FRAMES = [
    {"name": "all_reduce", "filename": "/venv/site-packages/torch/distributed/distributed_c10d.py", "line": 9},
    {"name": "step", "filename": "/job/train.py", "line": 41},
    {"name": "<module>", "filename": "/job/train.py", "line": 90},
]  # fmt: skip


def entry(record: int = 0, name: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """One entry as torch 2.10 writes it; seq counts with *record* unless given."""
    p2p = "->" in name or "<-" in name
    made = {
        "frames": FRAMES,
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 0 if p2p else record + 1,
        "p2p_seq_id": record + 1 if p2p else 0,
        "op_id": record + 1,
        "profiling_name": name,
        "time_created_ns": NS + record * 1000,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": NS + record * 1000 + 1,
        "time_discovered_completed_ns": NS + record * 1000 + 2,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": p2p,
        "thread_name": "pt_main_thread",
        "thread_id": "140231443445568",
    }
    return made | changes


def waiting(record: int, name: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """An entry that has not completed."""
    return entry(record, name, state="started", time_discovered_completed_ns=None, retired=False) | changes


def dump(
    entries: Sequence[Mapping[str, Any]],
    groups: Mapping[str, tuple[str, str]] | None = None,
    status: Mapping[str, tuple[int, int, int]] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A dump of torch 2.10; *groups* maps a name to (description, ranks as printed)."""
    groups = {"0": ("default_pg", "[0, 1, 2, 3]")} if groups is None else groups
    made: dict[str, Any] = {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": ranks} for name, (desc, ranks) in groups.items()},
        "comm_lib_version": "2.27.5",
    }
    if status is not None:
        words = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        made["pg_status"] = {key: dict(zip(words, numbers, strict=True)) for key, numbers in status.items()}
    return made | {"entries": list(entries)} | changes


def write(folder: Path, made: Any, name: str = "nccl_trace_rank_0") -> Path:
    """*made* as a pickle of protocol 2, as C++ writes it, or as JSON when the name says so."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(made).encode() if name.endswith(".json") else pickle.dumps(made, protocol=2))
    return path


def read(*paths: Path) -> Run:
    return load([str(path) for path in paths])


def flight(run: Run) -> pl.DataFrame:
    return run.tables["flight"]


def status(run: Run, group: str = "0") -> dict[str, Any]:
    """The row of *group* in ``flight_status``; there must be one."""
    return run.tables["flight_status"].row(by_predicate=pl.col("group") == group, named=True)
