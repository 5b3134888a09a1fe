"""Healthy signals about time: budget, input, host, communication (see ``tests/factories.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import polars as pl

from ddiag.model.signals import (
    Collectives,
    HostLaunch,
    HostLoad,
    InputWait,
    JobFacts,
    LateRanks,
    PythonOverhead,
    StepBudget,
    SyncPoints,
)

MIB = 1 << 20
GIB = 1 << 30
EPOCH_NS = 1_700_000_000_000_000_000
PARTS = {
    "comm_wait_ms": 2.0,
    "comm_transfer_ms": 10.0,
    "copy_ms": 0.4,
    "input_ms": 4.0,
    "sync_ms": 0.6,
    "host_ms": 2.0,
    "idle_ms": 1.0,
}
"""Healthy exposed parts of a 200 ms step, shorter in a shorter one; compute is the rest."""
HEALTHY_STEP_MS = 200.0

Given = dict[str, Any]
PerRank = float | Mapping[int, float]


def of_rank(value: PerRank, rank: int, healthy: float) -> float:
    """*value* itself, or a mapping's entry for *rank*, the other ranks being *healthy*."""
    return float(value.get(rank, healthy)) if isinstance(value, Mapping) else float(value)


def budget_table(
    *, ranks: tuple[int, ...] | int = 8, steps: int = 5, step_ms: float = 200.0, warmup: int = 0, **parts: PerRank
) -> pl.DataFrame:
    """A step budget whose parts sum to *step_ms*; each part may be a number or ``{rank: number}``.

    Without ``compute_ms`` compute is the remainder; with it the step is as long as its parts. *warmup* prepends
    unsteady steps five times as long.
    """
    members = tuple(range(ranks)) if isinstance(ranks, int) else ranks
    overlapped = parts.pop("overlapped_comm_ms", 40.0 if len(members) > 1 else 0.0)
    compute = parts.pop("compute_ms", None)
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise TypeError(f"not a part of the step: {', '.join(sorted(unknown))}")
    healthy_parts = {name: ms * step_ms / HEALTHY_STEP_MS for name, ms in PARTS.items()}
    rows, clock = [], EPOCH_NS
    for step in range(warmup + steps):
        steady = step >= warmup
        length = 0.0
        for rank in members:
            row = {name: of_rank(parts.get(name, healthy), rank, healthy) for name, healthy in healthy_parts.items()}
            rest = step_ms - sum(row.values())
            row["compute_ms"] = rest if compute is None else of_rank(compute, rank, rest)
            row["compute_ms"] += 0.0 if steady else 4 * step_ms
            if row["compute_ms"] < 0:
                raise ValueError(f"the parts of rank {rank} exceed a step of {step_ms} ms")
            row["step_ms"] = sum(row.values())
            row["overlapped_comm_ms"] = of_rank(overlapped, rank, 40.0)
            end = clock + round(row["step_ms"] * 1e6)
            rows.append({"rank": rank, "step": step, "start_ns": clock, "end_ns": end, "steady": steady, **row})
            length = max(length, row["step_ms"])
        clock += round(length * 1e6)
    marks = ("rank", "step", "start_ns", "end_ns", "steady", "step_ms", "compute_ms")
    return pl.DataFrame(rows).select(*marks, *PARTS, "overlapped_comm_ms").cast({"rank": pl.Int32})


@dataclass(frozen=True)
class Shape:
    """What the builders need to know of each other."""

    ranks: tuple[int, ...]
    steps: int
    step_ms: float
    on_device: bool

    def scaled(self, ms: float) -> float:
        """*ms* of the healthy step, in this one."""
        return ms * self.step_ms / HEALTHY_STEP_MS

    @property
    def distributed(self) -> bool:
        return len(self.ranks) > 1


def steps_of(shape: Shape) -> list[tuple[int, int, int]]:
    """(rank, step, start_ns) of every steady step."""
    length = round(shape.step_ms * 1e6)
    return [(r, s, EPOCH_NS + s * length) for s in range(shape.steps) for r in shape.ranks]


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    table = pl.DataFrame(rows)
    return table.with_columns(pl.col("rank").cast(pl.Int32)) if "rank" in table.columns else table


def job_facts(given: Given) -> JobFacts:
    ranks = tuple(given.get("ranks", range(8)))
    cuda = given.get("device_kind", "cuda") == "cuda"
    host_of = {rank: "node-a" if rank < 4 else "node-b" for rank in ranks}
    default = {
        "ranks": ranks,
        "world_size": len(ranks),
        "device_kind": "cuda",
        "device_names": ("NVIDIA H100 80GB HBM3",) if cuda else (),
        "hosts": tuple(sorted(set(host_of.values()))),
        "backends": (("nccl" if cuda else "gloo"),) if len(ranks) > 1 else (),
        "frameworks": ("pytorch",),
        "host_of": host_of,
    }
    return JobFacts(**{**default, **given})


def step_budget(shape: Shape, given: Given, derived: Given) -> StepBudget:
    """Shorthands: every part of :func:`budget_table` (``input_ms=60.0`` or ``input_ms={3: 60.0}``), ``warmup``."""
    parts = {k: given.pop(k) for k in ("compute_ms", "overlapped_comm_ms", "warmup", *PARTS) if k in given}
    table = given.get("table")
    if table is None:
        table = budget_table(ranks=shape.ranks, steps=shape.steps, step_ms=shape.step_ms, **{**derived, **parts})
    steady = table.filter(pl.col("steady"))
    unsteady = table.filter(~pl.col("steady"))
    default = {
        "table": table,
        "step_ms": steady["step_ms"].median(),
        "source": "annotation",
        "note": "ProfilerStep marks",
        "n_steps": steady["step"].n_unique(),
        "on_device": shape.on_device,
        "excluded_steps": tuple(sorted(unsteady["step"].unique().to_list())),
        "warmup_ms": unsteady["step_ms"].median(),
    }
    return StepBudget(**{**default, **given})


def input_wait(shape: Shape, given: Given) -> InputWait:
    """Shorthands: ``stall_by_rank={3: 60.0}`` (the others keep ``stall_ms``)."""
    stall = given.get("stall_ms", shape.scaled(4.0))
    by_rank = given.pop("stall_by_rank", {})
    wait = given.get("wait_ms", max(shape.scaled(5.0), stall * 1.1))
    per_rank = [
        {
            "rank": r,
            "wait_ms": max(wait, of_rank(by_rank, r, stall)),
            "stall_ms": of_rank(by_rank, r, stall),
            "stall_share": of_rank(by_rank, r, stall) / shape.step_ms,
        }
        for r in shape.ranks
    ]
    table = frame(per_rank)
    waits = [
        {"rank": r, "step": s, "start_ns": t, "end_ns": t + round(wait * 1e6), "wait_ms": wait}
        for r, s, t in steps_of(shape)
    ]
    default = {
        "per_rank": table,
        "wait_ms": fmean(table["wait_ms"].to_list()),
        "stall_ms": fmean(table["stall_ms"].to_list()),
        "stall_share": fmean(table["stall_share"].to_list()),
        "single_process": False,
        "waits": frame(waits),
        "iterator": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    }
    return InputWait(**{**default, **given})


def host_launch(shape: Shape, given: Given) -> HostLaunch:
    gap = given.get("launch_gap_ms", shape.scaled(2.0))
    default = {
        "launches_per_step": 2400.0,
        "median_kernel_us": 40.0,
        "launch_gap_ms": gap,
        "kernel_wait_ms": 1.0,
        "launch_gap_share": gap / shape.step_ms,
        "host_busy_share": 0.45,
    }
    return HostLaunch(**{**default, **given})


def sync_points(shape: Shape, given: Given) -> SyncPoints:
    """Shorthands: ``op``, ``where``; one row per rank is made from the scalars."""
    op, where = given.pop("op", "aten::item"), given.pop("where", "")
    stall, count = given.get("stall_ms", shape.scaled(0.6)), given.get("count_per_step", 1.0)
    rows = [
        {
            "rank": r,
            "op": op,
            "where": where,
            "count_per_step": count,
            "wait_ms": stall + shape.scaled(1.0),
            "stall_ms": stall,
        }
        for r in shape.ranks
    ]
    default = {
        "table": frame(rows),
        "stall_ms": stall,
        "stall_share": stall / shape.step_ms,
        "count_per_step": count,
    }
    return SyncPoints(**{**default, **given})


def collectives(shape: Shape, given: Given) -> Collectives:
    """40 all-reduces of 25 MiB per step, 12 of 52 ms exposed. Shorthands: ``count_per_step``, ``bytes``."""
    count, size = given.pop("count_per_step", 40), given.pop("bytes", 25 * MIB)
    exposed, overlapped = given.get("exposed_ms", shape.scaled(12.0)), given.get("overlapped_ms", shape.scaled(40.0))
    total = given.get("comm_ms", exposed + overlapped)
    wait, each = min(shape.scaled(2.0), exposed) / count, total / count
    seconds = (each - wait) / 1e3
    n = len(shape.ranks)
    algbw = size / seconds / 1e9
    call = {
        "group": "0",
        "op": "all_reduce",
        "bytes": size,
        "group_size": n,
        "dur_ms": each,
        "wait_ms": wait,
        "transfer_ms": each - wait,
        "exposed_ms": exposed / count,
    }
    calls = [
        {
            "rank": r,
            **call,
            "dtype": "BFloat16",
            "seq": s * count + k,
            "step": s,
            "start_ns": t + round((20.0 + k * each) * 1e6),
            "end_ns": t + round((20.0 + (k + 1) * each) * 1e6),
            "matched": True,
            "source": "kernel",
        }
        for r, s, t in steps_of(shape)
        for k in range(count)
    ]
    per_step = {k: v * count if k.endswith("_ms") else v for k, v in call.items()}
    summary = {**per_step, "count_per_step": float(count), "algbw_gbps": algbw, "busbw_gbps": algbw * 2 * (n - 1) / n}
    default = {
        "table": frame(calls),
        "summary": pl.DataFrame([summary]),
        "comm_ms": total,
        "exposed_ms": exposed,
        "blocking_ms": exposed,
        "overlapped_ms": overlapped,
        "exposed_share": exposed / shape.step_ms,
        "overlap_share": overlapped / total,
        "matched_ranks": n,
        "clock_error_us": 5.0,
    }
    return Collectives(**{**default, **given})


def late_ranks(shape: Shape, given: Given) -> LateRanks:
    """Shorthands: ``late={"rank": 3, "cause": "input", "input_ms": 60.0, …}`` makes one rank late by those fields."""
    late = dict(given.pop("late", {}))
    n, count = len(shape.ranks), given.get("collectives", 200)
    rows = []
    for r in shape.ranks:
        row = {
            "rank": r,
            "last_count": count // n,
            "collectives": count,
            "blame_ms": 10.0,
            "blame_share": 1 / n,
            "steps_last": 1 / n,
            "p_value": 0.5,
            "input_ms": 0.0,
            "compute_ms": 0.0,
            "host_ms": 0.0,
            "kernel_slowdown": 1.0,
            "cause": "unknown",
        }
        if late and r == late["rank"]:
            worst = {"last_count": count, "blame_ms": 900.0, "blame_share": 0.9, "steps_last": 1.0, "p_value": 1e-9}
            row.update({**worst, **late})
        elif late:
            row.update({"blame_share": 0.1 / (n - 1), "last_count": 0, "steps_last": 0.0, "p_value": 1.0})
        rows.append(row)
    wait = given.get("wait_ms_per_step", shape.scaled(40.0 if late else 2.0))
    default = {
        "table": frame(rows),
        "wait_ms_per_step": wait,
        "wait_share": wait / shape.step_ms,
        "persistent_rank": late.get("rank"),
        "rotating": False,
        "collectives": count,
        "groups": ("0",),
    }
    return LateRanks(**{**default, **given})


def host_load(shape: Shape, given: Given) -> HostLoad:
    """Shorthands: any column of the one row, e.g. ``runnable_per_cpu``; ``cpu_ms`` by rank."""
    row = {
        "host": "node0", "cpus": 128, "runnable_per_cpu": 0.3, "busy_share": 0.3, "waiting_share": 0.02,
        "job_share": 0.28, "steal_share": 0.0, "throttled_share": 0.0,
    }  # fmt: skip
    table = pl.DataFrame([row | {name: given.pop(name) for name in row if name in given}])
    cpu_ms = dict.fromkeys(shape.ranks, 0.9 * shape.step_ms) | given.pop("cpu_ms", {})
    return HostLoad(**{"table": table, "seconds": shape.steps * shape.step_ms / 1e3, "cpu_ms": cpu_ms, **given})


def python_overhead(given: Given) -> PythonOverhead:
    default = {
        "gc_ms_per_step": 0.0,
        "gc_ranks": (),
        "checkpoint_ms": 0.0,
        "logging_ms_per_step": 0.1,
        "compile_ms": 0.0,
        "anomaly_mode": False,
        "find_unused_ms": None,
        "dataloader_workers": 8,
    }
    return PythonOverhead(**{**default, **given})
