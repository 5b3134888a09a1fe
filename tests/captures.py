"""Captures of hangs as the supervisor writes them, from a healthy default: four ranks in one group that all wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddiag.schema.hang import write_capture

T_NS = 1_790_000_000_000_000_000
WAITS = (
    "all_reduce (/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252)",
    "step (/app/train.py:40)",
)


def call(seq: int, state: str = "done", **more: Any) -> dict[str, Any]:
    begun = T_NS - 60_000_000_000 + seq * 1_000_000
    plain = {"op": "all_reduce", "seq": seq, "state": state, "enqueue_ns": begun, "bytes_in": 4096, "bytes_out": 4096}
    plain |= {"end_ns": begun + 500_000 if state == "done" else None, "dtype": "float32", "peer": None, "label": None}
    return {**plain, "step": seq // 2, "phase": "backward", "end_unknown": False, **more}


def group(calls: Sequence[dict[str, Any]], ranks: Sequence[int] = range(4), **more: Any) -> dict[str, Any]:
    numbered = [one["seq"] for one in calls if one["op"] not in ("send", "recv")]
    open_calls = [one["seq"] for one in calls if one["state"] != "done" and one["op"] not in ("send", "recv")]
    last = max(numbered, default=None)
    plain = {"name": "0", "desc": "default_pg", "backend": "gloo", "ranks": list(ranks), "last_enqueued": last}
    plain |= {"last_completed": min(open_calls) - 1 if open_calls else last, "known": True, "cut": True}
    return {**plain, "calls": list(calls), **more}


def stack(*frames: str, **more: Any) -> dict[str, Any]:
    return {"thread": "MainThread", "tid": 1, "state": "idle", "kind": "python", "frames": list(frames), **more}


def rank(number: int, **more: Any) -> dict[str, Any]:
    """It waits in call 21."""
    plain: dict[str, Any] = {"rank": number, "pid": 1000 + number, "local_rank": number % 4, "attempt": 0, "step": 10}
    plain |= {"phase": "backward", "phase_s": 30.0, "quiet_s": 30.0, "limit_s": 20.0, "stuck": True, "closed": False}
    plain |= {"tier": "native", "state": "S", "threads": 12, "wchan": "futex_do_wait", "cpu_share": 0.0, "tracer": 0}
    plain |= {"rss_bytes": 1 << 30, "kernel": [], "stacks": [stack(*WAITS)], "stacks_by": "py-spy", "no_stacks": ""}
    return {**plain, "groups": [group([call(19), call(20), call(21, "issued")])], **more}


def late(number: int, *frames: str, **more: Any) -> dict[str, Any]:
    """It has not come to call 21."""
    at = frames or ("load (/app/data.py:7)", "<module> (/app/train.py:30)")
    return rank(number, **{"groups": [group([call(19), call(20)])], "stacks": [stack(*at)], "phase": "input", **more})


def write(run: Path, *ranks: dict[str, Any], host: str = "node-a", number: int = 1, **more: Any) -> Path:
    values = {"t": T_NS, "by": "watchdog", "world_size": 4, "devices": [], "ranks": list(ranks), **more}
    return write_capture(run, host, number, values)
