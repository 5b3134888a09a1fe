"""Tells a small Kineto trace in a few words, so that each test states only what it is about."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BASE_US = 1_700_000_000_000_000
"""Times in tests count from here (2023), as torch before 2.3 wrote them."""


def span(cat: str, name: str, start: float, dur: float, tid: Any = 10, **args: Any) -> dict[str, Any]:
    """A complete event *start* µs after the beginning."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": tid, "ts": BASE_US + start, "dur": dur}
    return {**event, "args": args} if args else event


def op(name: str, start: float, dur: float, tid: Any = 10, **args: Any) -> dict[str, Any]:
    return span("cpu_op", name, start, dur, tid, **args)


def launch(
    start: float, correlation: int, name: str = "cudaLaunchKernel", tid: Any = 10, dur: float = 5
) -> dict[str, Any]:
    return span("cuda_runtime", name, start, dur, tid, correlation=correlation)


def kernel(name: str, start: float, dur: float, stream: Any = 7, correlation: int = 1, **args: Any) -> dict[str, Any]:
    return span("kernel", name, start, dur, stream, device=0, stream=stream, correlation=correlation, **args)


def collective_args(name: Any = "allreduce", elements: Any = 1000, group: Any = "0", **more: Any) -> dict[str, Any]:
    """How torch >= 2.4 describes a call."""
    return {
        "Collective name": name, "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements,
        "Group size": 2, "Process Group Name": group, "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]", **more,
    }  # fmt: skip


def trace(*events: dict[str, Any], rank: int | None = 0, world: int = 2, **top: Any) -> dict[str, Any]:
    """A trace of the given events; by default of rank 0 of a job of two."""
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
    return {"schemaVersion": 1, **info, **top, "traceEvents": list(events)}


def healthy(rank: int | None = 0, world: int = 2, start: float = 0.0, **top: Any) -> dict[str, Any]:
    """One step: an operator, its launch and kernel, an all-reduce, a copy."""
    return trace(
        span("user_annotation", "ProfilerStep#3", start, 1000),
        op("aten::mm", start + 10, 50, **{"External id": 5, "Input Dims": [[2, 3], [3, 4]], "Input type": ["float"]}),
        launch(start + 20, 1),
        kernel("gemm", start + 100, 200, correlation=1),
        op("record_param_comms", start + 300, 40, **{"External id": 6, **collective_args()}),
        launch(start + 310, 2),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start + 400, 300, 20, 2, **collective_args()),
        launch(start + 700, 3, "cudaMemcpyAsync"),
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start + 720, 30, 7,
             device=0, stream=7, correlation=3, bytes=4096),
        {"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "ts": BASE_US, "args": {"name": "python"}},
        rank=rank,
        world=world,
        **top,
    )  # fmt: skip


def write(path: Path, content: dict[str, Any] | list[Any] | str | bytes) -> str:
    """Write a trace (packed when the name ends in .gz); returns the path as text."""
    data = (
        content
        if isinstance(content, bytes)
        else content.encode()
        if isinstance(content, str)
        else json.dumps(content).encode()
    )
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)
