"""The device idles while the host does something other than launching work.

## Meaning
Gaps between kernels that are neither the loader nor a blocking call: Python code, a callback, evaluation of metrics,
file access, a lock, a process that was taken off its CPU. Either a few long gaps (over 5 ms) or many short ones while
the training thread is mostly outside operators.

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
from statistics import fmean

import polars as pl

from ddiag.model.signals import HostLaunch, JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, name_ranks, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps

RULE = Rule(
    id="DD204",
    root_cause="RC-86",
    needs=(JobFacts, StepBudget, HostLaunch),
    optional=(LateRanks,),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA; with_stack=True names the Python frame",
    symptom="the device pauses for many milliseconds; neither the loader nor a synchronise call is there",
    evidence="device gaps outside loader and blocking calls, over 5 ms or with the host outside operators",
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
    """Mean per step below which pauses do not matter."""
    steps: int = 2
    """Steady steps without which a pause may be an accident of this one step."""
    in_calls_share: float = 0.3
    """Below this part of the gap inside recorded calls, the host was in plain Python or asleep."""
    top_op_share: float = 0.5
    """An operator is named as the culprit when it fills at least this part of the gaps."""
    busy_share: float = 0.5
    """Training thread inside operators or runtime calls / step below which short gaps are Python's, not launching's."""
    short_gap_share: float = 0.10
    """Short gaps / step for a finding; every eager job has a few per cent."""


@dataclass(frozen=True)
class Pauses:
    """The long gaps of the ranks that have enough of them."""

    gaps: pl.DataFrame
    ranks: tuple[int, ...]
    ms_per_step: float
    """Mean over those ranks."""
    in_calls: float
    """Part of the gaps inside recorded calls."""
    op: str | None
    """What fills most of them."""
    once: bool
    """A single pause in all recorded steps."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, host = signals[JobFacts], signals[StepBudget], signals[HostLaunch]
    if host.long_gaps is None or not budget.on_device or budget.step_ms <= 0:
        return
    pauses = _pauses(host.long_gaps, budget, limits)
    short_ms = _short_gaps_ms(host, budget, limits)
    if pauses is None and short_ms is None:
        return
    if pauses is not None and _is_one_late_rank(pauses.ranks, facts, signals.get(LateRanks)):
        return
    if budget.n_steps < limits.steps:
        yield Abstain(
            "the device idles while the host is busy elsewhere, but one step cannot tell a habit from an accident",
            "profile 5+ steps with marks (prof.step() after each) and with_stack=False",
        )
    elif pauses is not None:
        yield _long(pauses, facts, budget, limits)
    elif short_ms is not None:
        yield _short(short_ms, host, facts, budget, limits)


def _pauses(gaps: pl.DataFrame, budget: StepBudget, limits: Limits) -> Pauses | None:
    steps = max(budget.n_steps, 1)
    per_rank = dict(gaps.group_by("rank").agg(pl.col("gap_ms").sum() / steps).sort("rank").iter_rows())
    floor = max(limits.gap_ms, limits.gap_share * budget.step_ms)
    ranks = tuple(sorted(rank for rank, gap in per_rank.items() if gap >= floor))
    if not ranks:
        return None
    of_ranks = gaps.filter(pl.col("rank").is_in(ranks))
    total = float(of_ranks["gap_ms"].sum())
    return Pauses(
        gaps=of_ranks,
        ranks=ranks,
        ms_per_step=fmean(per_rank[rank] for rank in ranks),
        in_calls=float(of_ranks["host_ms_in_calls"].fill_null(0.0).sum()) / total,
        op=_top_op(of_ranks, limits.top_op_share * total),
        once=of_ranks.select("rank", "step").n_unique() == 1,
    )


def _top_op(gaps: pl.DataFrame, least_ms: float) -> str | None:
    """The operator that fills at least *least_ms* of the gaps; the step's own mark is none."""
    name = pl.col("top_op").fill_null("")
    named = gaps.filter((name != "") & ~name.str.starts_with("ProfilerStep"))
    best = named.group_by("top_op").agg(pl.col("gap_ms").sum()).sort("gap_ms", "top_op", descending=[True, False])
    return str(best["top_op"][0]) if best.height and best["gap_ms"][0] >= least_ms else None


def _short_gaps_ms(host: HostLaunch, budget: StepBudget, limits: Limits) -> float | None:
    """Device idle per step in short gaps when the host is mostly outside calls, else None."""
    long_ms = 0.0
    if host.long_gaps is not None and host.long_gaps.height:
        long_ms = float(host.long_gaps["gap_ms"].sum()) / (max(budget.n_steps, 1) * budget.table["rank"].n_unique())
    short_ms = min(host.launch_gap_ms, budget.mean("host_ms")) - long_ms
    floor = max(limits.gap_ms, limits.short_gap_share * budget.step_ms)
    return short_ms if host.host_busy_share < limits.busy_share and short_ms >= floor else None


def _is_one_late_rank(paused: tuple[int, ...], facts: JobFacts, late: LateRanks | None) -> bool:
    """The gaps belong to the one late rank, whose own rule names it."""
    if late is None or late.persistent_rank is None or paused != (late.persistent_rank,) or len(facts.ranks) < 2:
        return False
    return late.table.filter(pl.col("rank") == late.persistent_rank)["cause"].to_list() == ["host"]


def _long(pauses: Pauses, facts: JobFacts, budget: StepBudget, limits: Limits) -> Finding:
    gap_ms, gaps = pauses.ms_per_step, pauses.gaps
    share = gap_ms / budget.step_ms
    outside = pauses.in_calls < limits.in_calls_share
    doing = f"in {pauses.op}" if pauses.op else "in plain Python or asleep" if outside else "in several calls"
    severity = severity_over_steps(share, budget, warning=limits.gap_share, critical=limits.critical_share)
    everybody = set(pauses.ranks) == set(facts.ranks)
    idle = f"device idle > 5 ms, {over_steps(budget)}"
    per_rank = gaps.height / max(budget.n_steps, 1) / len(pauses.ranks)
    return Finding(
        title=f"device idle for {gap_ms:.1f} ms per step ({share:.0%} of the step) in long gaps with the host {doing}",
        severity=Severity.INFO if pauses.once else severity,
        confidence=Confidence.LOW if pauses.once else confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(ranks=() if everybody else pauses.ranks, where=pauses.op),
        evidence=(
            Evidence("long gaps", round(gap_ms, 3), "ms/step", limits.gap_ms, idle),
            Evidence("long gaps", round(share, 4), "of step", limits.gap_share, "gaps / median step"),
            Evidence("gaps", round(per_rank, 2), "per step and rank", None, "count"),
            Evidence("longest gap", round(float(gaps["gap_ms"].to_numpy().max()), 3), "ms", None, _longest(gaps)),
            Evidence(
                "host inside calls", round(pauses.in_calls, 3), "of the gaps", limits.in_calls_share, "training thread"
            ),
            Evidence(
                "ranks with long gaps", len(pauses.ranks), f"of {len(facts.ranks)}", None, name_ranks(pauses.ranks)
            ),
        ),
        fix=_fixes(None if outside else pauses.op),
        verify=f"`ddiag analyze NEW_TRACES`: long gaps below {limits.gap_share:.0%} of the step",
        cost=step_cost(gap_ms, budget, facts),
        why="nothing was queued on the device; the training thread was neither in the loader nor in a blocking call",
        doubt=doubts(facts, "work on threads that the profiler does not record (data staging, a lock) is not seen"),
    )


def _short(short_ms: float, host: HostLaunch, facts: JobFacts, budget: StepBudget, limits: Limits) -> Finding:
    share = short_ms / budget.step_ms
    outside = 1 - host.host_busy_share
    return Finding(
        title=f"device idle for {short_ms:.1f} ms per step ({share:.0%} of the step) in short gaps, with the training "
        f"thread outside operators for {outside:.0%} of the step",
        severity=severity_over_steps(share, budget, warning=limits.short_gap_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True, at_most=Confidence.MEDIUM),
        culprits=Culprits(where="Python between operators"),
        evidence=(
            Evidence("short gaps", round(short_ms, 3), "ms/step", limits.gap_ms, over_steps(budget)),
            Evidence("short gaps", round(share, 4), "of step", limits.short_gap_share, "gaps up to 5 ms / median step"),
            Evidence(
                "host inside calls", round(host.host_busy_share, 3), "of step", limits.busy_share, "training thread"
            ),
            Evidence("launches", round(host.launches_per_step, 1), "per step", None, "runtime launch calls"),
        ),
        fix=_fixes(None),
        verify=f"`ddiag analyze NEW_TRACES`: short gaps below {limits.short_gap_share:.0%} of the step",
        cost=step_cost(short_ms, budget, facts),
        why="launching is not what keeps the host: it is outside operators and runtime calls most of the time",
        doubt=doubts(facts, "operators of extensions that are not recorded look like plain Python"),
    )


def _longest(gaps: pl.DataFrame) -> str:
    row = gaps.sort("gap_ms").row(-1, named=True)
    return f"rank {row['rank']}, step {row['step']}"


def _fixes(op: str | None) -> tuple[str, ...]:
    first = (
        "find the code: profile 3 steps with with_stack=True, or `py-spy record --gil -d 30 -p PID` on that rank"
        if op is None
        else f"look at what calls {op} between the last kernel and the next, and move it out of the step"
    )
    return (
        first,
        "move callbacks, metrics, file writes and uploads to a background thread or process, or do them every N steps",
        "garbage collection is not visible unless recorded: try gc.disable() for 200 steps (see DD203)",
        "check that the thread keeps its CPU: cgroup throttling (cpu.stat nr_throttled), too many threads "
        "(OMP_NUM_THREADS), NUMA pinning (numactl, torchrun --numa-binding)",
    )
