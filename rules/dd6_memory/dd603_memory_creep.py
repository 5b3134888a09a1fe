"""Memory in use grows from step to step.

## Meaning
Something keeps tensors alive beyond their step: losses stored with their graph, growing lists of outputs, caches,
hooks, communicators created in the loop.

## Impact
None at first; then, hours later, out of memory on a run that had looked healthy.

## Diagnosis
Allocated memory at step ends rises in most steps. Reserved memory growing while allocated stays flat is fragmentation
(DD602); growth in the first steps only is warm-up.

## Mitigation
Store numbers, not tensors (`loss.detach()`, `.item()` every N steps); find the owner with a memory snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import JobFacts, Memory, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, human_bytes

RULE = Rule(
    id="DD603",
    root_cause="RC-76",
    needs=(JobFacts, StepBudget, Memory),
    capture="torch.profiler.profile(profile_memory=True) over 20+ steps after warm-up",
    symptom="out of memory after hours, always about the same number of steps after the start",
    evidence="allocated memory at step ends rises step after step",
    applies=lambda signals: (
        signals.has(Memory) or (facts := signals.get(JobFacts)) is None or facts.device_kind != "cpu"
    ),
    references=("https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",),
)


@dataclass(frozen=True)
class Limits:
    growth_bytes: float = 1_048_576.0
    """Growth per step (1 MiB) below which allocator rounding could explain it."""
    growth_share: float = 0.0005
    """Growth per step / allocated below which it is drift of batch sizes."""
    steps: int = 4
    """Steady steps needed for any slope."""
    sure_steps: int = 10
    """Steady steps from which a rise in nearly every step is a leak rather than longer batches."""
    rising_share: float = 0.7
    """Part of the steps that must end with more memory than the one before."""
    soon_steps: float = 10_000.0
    """Steps until memory runs out above which the leak is only information."""
    host_growth_bytes: float = 65_536.0
    """The same as growth_bytes for a host, whose memory is known for every step of a recorded run …"""
    host_total_share: float = 0.05
    """… provided that it grew by this share of what is in use: pools and caches level off."""
    stretches: int = 20
    """Longer runs are judged by this many stretches of steps: a process grows in bursts."""


_OWNER = {
    "device": "find the owner: torch.cuda.memory._record_memory_history(), 20 steps, "
    "torch.cuda.memory._dump_snapshot(FILE), then open it at pytorch.org/memory_viz",
    "host": "find the owner: tracemalloc.start() and compare two snapshots 100 steps apart (Python objects), or run "
    "under memray (`memray run --native`); tensors kept alive show in gc.get_objects()",
}


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    budget, memory = signals[StepBudget], signals[Memory]
    growth = memory.growth_bytes_per_step
    host = _is_host(memory)
    if growth is None or budget.n_steps < limits.steps:
        return
    if growth < (limits.host_growth_bytes if host else limits.growth_bytes):
        return
    ends = _stretched(_step_ends(budget, memory), limits.stretches)
    if ends.is_empty():
        return
    rising = ends.group_by("rank").agg(
        up=(pl.col("allocated_bytes").diff() > 0).sum() / (pl.len() - 1), last=pl.col("allocated_bytes").last()
    )
    worst = rising.sort("up", "rank", descending=[True, False]).row(0, named=True)
    steps = memory.growth_steps or budget.n_steps
    enough = (
        growth * steps >= limits.host_total_share * worst["last"]
        if host
        else (growth >= limits.growth_share * worst["last"])
    )
    if worst["up"] < limits.rising_share or not enough:
        return
    left = _headroom_bytes(memory)
    steps_left = left / growth if left is not None else None
    soon = steps_left is not None and steps_left <= limits.soon_steps
    sure = steps >= limits.sure_steps
    what = "memory of the training process" if host else "memory in use"
    until = f": out of memory in about {steps_left:,.0f} steps" if steps_left is not None else ""
    yield Finding(
        title=f"{what} grows by {human_bytes(growth)} per step{until}",
        severity=Severity.WARNING if sure and soon else Severity.INFO,
        confidence=Confidence.MEDIUM if sure else Confidence.LOW,
        culprits=Culprits(where=f"{'resident set' if host else 'memory allocated'} at step ends"),
        evidence=(
            Evidence("growth", round(growth), "bytes/step", limits.growth_bytes, "slope of allocated at step ends"),
            Evidence(
                "steps that rise", round(worst["up"], 3), "of steps", limits.rising_share, f"rank {worst['rank']}"
            ),
            Evidence("steady steps", steps, "", limits.sure_steps, "needed to be sure"),
            Evidence("allocated at the last step", int(worst["last"]), "bytes", None, f"rank {worst['rank']}"),
            *(
                (Evidence("steps left", round(steps_left), "steps", limits.soon_steps, "free memory / growth"),)
                if steps_left is not None
                else ()
            ),
        ),
        fix=(
            "store numbers instead of tensors that drag their graph along: total += loss.detach(), never total += "
            "loss; clear lists of outputs every N steps",
            _OWNER["host" if host else "device"],
            "do not create groups, optimizers, hooks or CUDA graphs inside the loop; destroy_process_group(group) "
            "when done",
        ),
        verify="log the process's resident set (psutil.Process().memory_info().rss) every 100 steps: it must level off"
        if host
        else "log torch.cuda.memory_allocated() at the same point of every step: flat over 1000 steps",
        why="memory at the end of a step should return to what it was at the end of the step before",
        doubt="batches that happen to grow, or a capture that still includes warm-up, rise in the same way",
    )


def _step_ends(budget: StepBudget, memory: Memory) -> pl.DataFrame:
    """rank, step, allocated_bytes: the last value before each steady step ended."""
    steps = budget.table.filter(pl.col("steady")).select("rank", "step", "end_ns").sort("end_ns")
    values = (
        memory.timeline.select("rank", "ts_ns", "allocated_bytes").cast({"rank": steps["rank"].dtype}).sort("ts_ns")
    )
    joined = steps.join_asof(values, left_on="end_ns", right_on="ts_ns", by="rank", check_sortedness=False)
    enough = joined.drop_nulls("allocated_bytes").sort("rank", "step")
    return enough.filter(pl.len().over("rank") >= 2)


def _is_host(memory: Memory) -> bool:
    return memory.per_rank["device"].to_list() == ["cpu"] * memory.per_rank.height


def _stretched(ends: pl.DataFrame, stretches: int) -> pl.DataFrame:
    """Means over *stretches* equal parts of each rank's steps; as they are when there are hardly more steps."""
    if ends.is_empty() or ends.group_by("rank").len()["len"].to_list()[0] <= 2 * stretches:
        return ends
    number = (pl.int_range(pl.len()) * stretches // pl.len()).over("rank").alias("step")
    return ends.with_columns(number).group_by("rank", "step").agg(pl.col("allocated_bytes").mean()).sort("rank", "step")


def _headroom_bytes(memory: Memory) -> float | None:
    """Capacity not yet allocated on the fullest rank, or None when the capacity is unknown."""
    known = memory.per_rank.filter(pl.col("capacity_bytes") > 0)
    free = (known["capacity_bytes"] - known["peak_allocated_bytes"]).to_list()
    return float(min(free)) if free else None
