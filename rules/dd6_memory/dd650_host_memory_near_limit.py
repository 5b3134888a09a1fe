"""Host memory is nearly full: the kernel kills a process when it runs out.

## Meaning
What the job's processes hold comes near the limit of their control group (container, batch job), or near all that the
host has. File cache, which is given back when needed, is not counted.

## Impact
A checkpoint, an epoch with larger batches or one more loader worker ends in SIGKILL without a traceback, and the other
ranks time out. Before that the host swaps or gives back its file cache, and everything becomes slow.

## Diagnosis
Samples of the host and its control group over the run: the fullest moment, and what the ranks and their loader workers
held then.

## Mitigation
Fewer loader workers, less prefetched and pinned, less offloaded, one copy of the data set per host, or a higher limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from ddiag.model.signals_sampled import HostMemory
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, human_bytes

RULE = Rule(
    id="DD650",
    root_cause="RC-29",
    needs=(HostMemory,),
    capture="ddiag run on the nodes of the job (it samples the host's memory and its limits)",
    symptom="Killed, exit code -9 or 137 after hours or while saving; the host swaps",
    evidence="memory in use above 92 % of the control group's limit, or above 95 % of the host",
    applies=lambda signals: signals.has(HostMemory),
    explained_by=("DD603", "DD604", "DD929"),
)


@dataclass(frozen=True)
class Limits:
    group_share: float = 0.92
    """In use / limit of the control group: at 1 the kernel kills in it."""
    host_share: float = 0.95
    """In use / memory of the host: the kernel keeps a few per cent for itself."""
    samples: int = 3
    """Fewer may have met a moment that says nothing."""
    swapped_bytes: float = float(1 << 30)
    """Swapped out while the job ran, from which memory was short already."""
    of_job: float = 0.5
    """What the job holds / what is in use below which others fill the host."""
    largest: float = 2.0
    """Largest rank / mean of its host's ranks, from which the rank is named."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    rows = signals[HostMemory].table.with_columns(share=pl.col("peak_bytes") / pl.col("limit_bytes"))
    full = [row for row in rows.iter_rows(named=True) if _is_full(row, limits)]
    if not full:
        return
    worst = max(full, key=lambda row: float(row["share"]))
    others = worst["limit"] == "host" and worst["job_bytes"] < limits.of_job * worst["peak_bytes"]
    ranks = () if others else _ranks(worst, limits)
    what = "the limit of its control group" if worst["limit"] == "cgroup" else "all that it has"
    yield Finding(
        title=f"host memory nearly full on {worst['host']}: {human_bytes(worst['peak_bytes'])} of "
        f"{human_bytes(worst['limit_bytes'])}, {what}{', most of it held by others than the job' if others else ''}",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM if others else Confidence.HIGH,
        culprits=Culprits(ranks=ranks, hosts=tuple(sorted(row["host"] for row in full)), where="host memory"),
        evidence=tuple(_evidence(worst, limits)),
        fix=_OTHERS if others else _FIXES,
        verify="`ddiag run` again: host memory stays below "
        f"{limits.group_share:.0%} of the limit over an epoch, an evaluation and a checkpoint",
        why="file cache that can be given back is not counted",
        doubt="a process that is no rank of this job may grow or end" if others else "",
    )


def _is_full(row: Mapping[str, Any], limits: Limits) -> bool:
    share = limits.group_share if row["limit"] == "cgroup" else limits.host_share
    return bool(row["samples"] >= limits.samples and row["share"] >= share)


def _ranks(row: Mapping[str, Any], limits: Limits) -> tuple[int, ...]:
    """The rank that holds far more than its neighbours."""
    if row["ranks"] < 2 or row["largest_bytes"] is None:
        return ()
    mean = row["job_bytes"] / row["ranks"]
    return (row["largest_rank"],) if row["largest_bytes"] >= limits.largest * mean > 0 else ()


def _evidence(row: Mapping[str, Any], limits: Limits) -> Iterator[Evidence]:
    group = row["limit"] == "cgroup"
    source = f"highest of {row['samples']} samples, {row['host']}"
    share = limits.group_share if group else limits.host_share
    yield Evidence("in use", round(row["share"], 4), "of the limit" if group else "of the host", share, source)
    yield Evidence("limit of the control group" if group else "memory of the host", row["limit_bytes"], "bytes")
    yield Evidence("held by ranks and loaders", human_bytes(row["job_bytes"]), "", None, "shared memory counts twice")
    if row["largest_rank"] is not None:
        yield Evidence(f"held by rank {row['largest_rank']}", human_bytes(row["largest_bytes"]), "", None, "the most")
    if (row["swapped_bytes"] or 0) >= limits.swapped_bytes:
        yield Evidence("swapped out meanwhile", row["swapped_bytes"], "bytes", limits.swapped_bytes, source)


_FIXES = (
    "fewer DataLoader workers and a smaller prefetch_factor; numpy arrays, Arrow or shared memory instead of lists of "
    "Python objects, which every forked worker copies bit by bit",
    "one copy per host: memory-mapped data sets, low_cpu_mem_usage=True, fsdp_cpu_ram_efficient_loading: true",
    "offload less: DeepSpeed offload_optimizer.ratio < 1 or NVMe (16-18 bytes per parameter are held by each node)",
    "raise the limit (Slurm --mem, Kubernetes resources.limits.memory), or use hosts with more memory",
)
_OTHERS = (
    "`ps aux --sort=-rss | head`: what else runs there; leftovers of an earlier job, files in /dev/shm",
    "ask the scheduler for the whole node, or give the job a memory limit of its own",
)
