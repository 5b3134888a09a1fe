"""The device idles for long stretches while the host does something else.

## Meaning
Gaps of more than 5 ms between kernels that are neither the loader nor a blocking call: Python code, a callback,
evaluation of metrics, file access, a lock, a process that was taken off its CPU.

## Impact
The device is idle for the whole gap, and all other ranks wait for this one at the next collective.

## Diagnosis
The operator or call that fills most of the gap, and how much of the gap the host spends inside recorded calls at all: a
gap without any call is Python code or a sleeping thread. Recorded Python stacks name the frame.

## Mitigation
Move the work off the training thread, do it less often, or prepare it while the device is busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import HostLaunch, JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, name_ranks, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, host_time_unknown, over_steps, severity_over_steps

RULE = Rule(
    id="DD204",
    root_cause="RC-86",
    needs=(JobFacts, StepBudget, HostLaunch),
    optional=(LateRanks,),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA; with_stack=True names the Python frame",
    symptom="the device pauses for many milliseconds; neither the loader nor a synchronise call is there",
    evidence="device gaps over 5 ms outside loader and blocking calls",
    applies=lambda signals: (facts := signals.get(JobFacts)) is None or facts.device_kind != "cpu",
    explained_by=("DD203", "DD205", "DD207", "DD208", "DD602", "DD1002", "DD1103", "DD804"),
)


@dataclass(frozen=True)
class Limits:
    gap_share: float = 0.05
    """Long gaps / step for a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    gap_ms: float = 2.0
    """Mean per step below which single pauses do not matter."""
    in_calls_share: float = 0.3
    """Below this part of the gap inside recorded calls, the host was in plain Python or asleep."""
    top_op_share: float = 0.5
    """An operator is named as the culprit when it fills at least this part of the gaps."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, host = signals[JobFacts], signals[StepBudget], signals[HostLaunch]
    if host.long_gaps is None or not budget.on_device or budget.step_ms <= 0:
        return
    steps = max(budget.n_steps, 1)
    inner = _inside(host.long_gaps, budget)
    per_rank = dict(inner.group_by("rank").agg(pl.col("gap_ms").sum() / steps).sort("rank").iter_rows())
    floor = max(limits.gap_ms, limits.gap_share * budget.step_ms)
    paused = sorted(rank for rank, gap in per_rank.items() if gap >= floor)
    if not paused or _is_one_late_rank(paused, facts, signals.get(LateRanks)):
        return
    unknown = host_time_unknown(budget, facts)
    if unknown is not None:
        yield unknown
        return
    gaps = inner.filter(pl.col("rank").is_in(paused))
    gap_ms = sum(per_rank[rank] for rank in paused) / len(paused)
    share = gap_ms / budget.step_ms
    in_calls = float(gaps["host_ms_in_calls"].fill_null(0.0).sum()) / float(gaps["gap_ms"].sum())
    op = _top_op(gaps, limits)
    doing = (
        f"in {op}" if op else "in plain Python or asleep" if in_calls < limits.in_calls_share else "in several calls"
    )
    everybody = set(paused) == set(facts.ranks)
    yield Finding(
        title=f"device idle for {gap_ms:.1f} ms per step ({share:.0%} of the step) in long gaps with the host {doing}",
        severity=severity_over_steps(share, budget, warning=limits.gap_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(ranks=() if everybody else tuple(paused), where=op),
        evidence=(
            Evidence(
                "long gaps", round(gap_ms, 3), "ms/step", round(floor, 3), f"device idle > 5 ms, {over_steps(budget)}"
            ),
            Evidence("long gaps", round(share, 4), "of step", limits.gap_share, "gaps / median step"),
            Evidence("gaps", round(gaps.height / steps / len(paused), 2), "per step and rank", None, "count"),
            Evidence("longest gap", round(float(gaps["gap_ms"].to_numpy().max()), 3), "ms", None, _longest(gaps)),
            Evidence(
                "host inside calls", round(in_calls, 3), "of the gaps", limits.in_calls_share, "operators, runtime"
            ),
            Evidence("ranks with long gaps", len(paused), f"of {len(facts.ranks)}", None, name_ranks(paused)),
        ),
        fix=_fixes(op, outside_calls=in_calls < limits.in_calls_share),
        verify=f"`ddiag analyze NEW_TRACES`: long gaps below {limits.gap_share:.0%} of the step",
        cost=step_cost(gap_ms, budget, facts),
        why="nothing was queued on the device; the training thread was neither in the loader nor in a blocking call",
        doubt=doubts(facts, "work on threads that the profiler does not record (data staging, a lock) is not seen"),
    )


def _inside(gaps: pl.DataFrame, budget: StepBudget) -> pl.DataFrame:
    """The gaps of the job: where the whole capture is one step, its idle beginning and end are the profiler's."""
    if budget.source != "window":
        return gaps
    edges = budget.table.group_by("rank").agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
    ends = pl.col("start_ns") + (pl.col("gap_ms") * 1e6).cast(pl.Int64)
    placed = gaps.join(edges, on="rank").filter((pl.col("start_ns") > pl.col("first")) & (ends < pl.col("last")))
    return placed.drop("first", "last")


def _is_one_late_rank(paused: list[int], facts: JobFacts, late: LateRanks | None) -> bool:
    """The gaps belong to the one late rank, whose own rule names it."""
    if late is None or late.persistent_rank is None or paused != [late.persistent_rank] or len(facts.ranks) < 2:
        return False
    return late.table.filter(pl.col("rank") == late.persistent_rank)["cause"].to_list() == ["host"]


def _top_op(gaps: pl.DataFrame, limits: Limits) -> str | None:
    """The operator that fills at least ``top_op_share`` of the gaps."""
    total = float(gaps["gap_ms"].sum())
    named = gaps.filter(pl.col("top_op").is_not_null() & (pl.col("top_op") != ""))
    best = named.group_by("top_op").agg(pl.col("gap_ms").sum()).sort("gap_ms", "top_op", descending=[True, False])
    if best.is_empty() or best["gap_ms"][0] < limits.top_op_share * total:
        return None
    return str(best["top_op"][0])


def _longest(gaps: pl.DataFrame) -> str:
    row = gaps.sort("gap_ms").row(-1, named=True)
    return f"rank {row['rank']}, step {row['step']}"


def _fixes(op: str | None, *, outside_calls: bool) -> tuple[str, ...]:
    first = (
        "find the code: profile 3 steps with with_stack=True, or `py-spy record --gil -d 30 -p PID` on that rank"
        if outside_calls or op is None
        else f"look at what calls {op} between the last kernel and the next, and move it out of the step"
    )
    return (
        first,
        "move callbacks, metrics, file writes and uploads to a background thread or process, or do them every N steps",
        "garbage collection is not visible unless recorded: try gc.disable() for 200 steps (see DD203)",
        "check that the thread keeps its CPU: cgroup throttling (cpu.stat nr_throttled), too many threads "
        "(OMP_NUM_THREADS), NUMA pinning (numactl, torchrun --numa-binding)",
    )
