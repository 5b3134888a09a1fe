"""Ranks wait for a different late rank each time: the work per batch is uneven.

## Meaning
Waiting is a large share of the step, but no rank stands out: whoever has the longest batch is late. Typical of
variable-length sequences, mixture-of-experts routing and uneven packing; short random pauses (garbage collection,
allocator) look alike.

## Impact
Each step takes as long as its slowest rank; the loss grows with the number of ranks.

## Diagnosis
Waiting share of the step, and blame spread over ranks without a significant leader. Where ranks compute on CPUs that
they have to share, or may have, the scheduler alone does this, and nothing is said.

## Mitigation
Balance work per global batch, by tokens and by squared length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, JobFacts, LateRanks, PythonOverhead, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import severity_for, step_cost
from ddiag.rulekit.hidden_waiting import costs_nothing
from ddiag.rulekit.skew import ALONE, MEASURED, UNMEASURED, contended, several_ranks, unmeasured

RULE = Rule(
    id="DD504",
    root_cause="RC-57",
    needs=(JobFacts, StepBudget, LateRanks),
    optional=(PythonOverhead, HostLoad),
    capture="profile all ranks over the same 10+ steps (torch.profiler on every rank, same schedule)",
    symptom="step time varies a lot and a different rank is slow each step",
    evidence="much waiting, but blame spread over ranks without a significant leader",
    applies=several_ranks,
    explained_by=("DD209", "DD101", "DD102", "DD103", "DD203"),
)


@dataclass(frozen=True)
class Limits:
    wait_share: float = 0.08
    """Waiting / step for a finding; some jitter is always there."""
    wait_ms: float = 1.0
    """Waiting per step below which the scheduler alone does it, however short the step."""
    critical_share: float = 0.30
    """From here it is the first thing to fix."""
    steps: int = 3
    """With fewer steps rotation cannot be told from chance."""
    contended_runnable: float = 1.2
    """Threads that want to run per CPU from which the scheduler makes ranks late that compute on CPUs …"""
    contended_waiting: float = 0.2
    """… or the part of the time in which somebody waited for a CPU."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, late = signals[JobFacts], signals[StepBudget], signals[LateRanks]
    if late.persistent_rank is not None or not late.rotating or late.wait_share < limits.wait_share:
        return
    if late.wait_ms_per_step < limits.wait_ms or costs_nothing(budget, (), late.wait_ms_per_step):
        return
    if budget.n_steps < limits.steps:
        yield Abstain(f"only {budget.n_steps} steady step(s): rotation cannot be told from chance", RULE.capture)
        return
    load = signals.get(HostLoad)
    if unmeasured(facts, load):
        yield Abstain(
            f"ranks wait {late.wait_share:.0%} of the step for a changing late rank, but {UNMEASURED}", MEASURED
        )
        return
    crowd = contended(facts, load, runnable=limits.contended_runnable, waiting=limits.contended_waiting)
    if crowd:
        yield Abstain(
            f"ranks wait {late.wait_share:.0%} of the step for a changing late rank, as when CPUs are short: {crowd}",
            ALONE,
        )
        return
    worst = late.table.sort("blame_share", descending=True).row(0, named=True)
    python = signals.get(PythonOverhead)
    yield Finding(
        title=f"ranks wait {late.wait_share:.0%} of the step for a late rank that changes from step to step",
        severity=severity_for(late.wait_share, warning=limits.wait_share, critical=limits.critical_share),
        confidence=Confidence.MEDIUM,
        evidence=(
            Evidence("waiting", round(late.wait_share, 4), "of step", limits.wait_share, "mean over ranks"),
            Evidence("waiting", round(late.wait_ms_per_step, 3), "ms/step", None, f"{late.collectives} collectives"),
            Evidence(
                "largest blame", round(float(worst["blame_share"]), 3), "of waiting", None, f"rank {worst['rank']}"
            ),
            Evidence("garbage collection", round(python.gc_ms_per_step, 3), "ms/step", None, "gc spans")
            if python is not None
            else Evidence("garbage collection", "not recorded", "", None, "needs with_stack=True"),
        ),
        fix=(
            "balance each global batch over ranks by the sum of tokens and of squared lengths (length-grouped sampler, "
            "sequence packing; Megatron: hybrid context parallelism)",
            "mixture of experts: auxiliary loss or bias-based balancing, capacity factor",
            "rule out pauses: run 200 steps with gc.disable() and compare p99 step time",
        ),
        verify="log the sum of tokens and of squared lengths per rank and step: correlation with compute time > 0.8",
        cost=step_cost(late.wait_ms_per_step, budget, facts),
        why="waiting is measured per collective, and no rank causes significantly more of it than chance allows",
        doubt="random pauses (GC, allocator, network jitter) on changing ranks give the same picture",
    )
