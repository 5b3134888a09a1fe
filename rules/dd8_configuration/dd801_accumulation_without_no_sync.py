"""Gradients are reduced after every micro-batch although the optimizer steps once for several.

## Meaning
With gradient accumulation only the last backward needs to reduce. Without `no_sync()` each backward does.

## Impact
The gradient traffic of a step is multiplied by the number of micro-batches, and each reduction waits for all ranks.

## Diagnosis
Backward passes per optimizer step, and how many of them reduced gradients. Sharded data parallelism (ZeRO-2/3, FSDP
without gradient-sync control) reduces every micro-batch by design and is left out.

## Mitigation
Wrap all but the last micro-batch in `no_sync()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import GradBuckets, JobFacts, ShardUnits, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD801",
    root_cause="RC-70",
    needs=(JobFacts, StepBudget, GradBuckets),
    optional=(ShardUnits,),
    capture="profile 3+ optimizer steps (a whole accumulation cycle each) with torch.profiler",
    symptom="gradient accumulation gives no speed-up",
    evidence="as many reducing backward passes as micro-batches per optimizer step",
)


@dataclass(frozen=True)
class Limits:
    accumulation: int = 2
    """Backward passes per optimizer step from which accumulation is in use."""
    warning_share: float = 0.03
    """Exposed redundant reductions / step for a warning; below it is information."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    notice_share: float = 0.005
    """Below this it is not worth a line."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, buckets = signals[JobFacts], signals[StepBudget], signals[GradBuckets]
    if buckets.accumulation < limits.accumulation or buckets.synced_backwards < buckets.accumulation:
        return
    if signals.get(ShardUnits) is not None or budget.step_ms <= 0:
        return
    redundant = (buckets.synced_backwards - 1) / buckets.synced_backwards
    gain_ms = buckets.exposed_ms * redundant
    share = gain_ms / budget.step_ms
    if share < limits.notice_share:
        return
    worth = share >= limits.warning_share
    yield Finding(
        title=f"gradients reduced in all {buckets.accumulation} micro-batches of each optimizer step; one would do",
        severity=severity_for(share, warning=limits.warning_share, critical=limits.critical_share)
        if worth
        else Severity.INFO,
        confidence=Confidence.HIGH if budget.n_steps >= 2 else Confidence.MEDIUM,
        culprits=Culprits(where="backward() outside no_sync()"),
        evidence=(
            Evidence(
                "micro-batches", buckets.accumulation, "per optimizer step", limits.accumulation, "backward passes"
            ),
            Evidence("reducing", buckets.synced_backwards, "per optimizer step", 1, "backward passes with reductions"),
            Evidence("reductions", round(buckets.reductions_per_optimizer_step, 1), "per optimizer step", None, ""),
            Evidence("exposed", round(gain_ms, 3), "ms/step", None, "redundant share of exposed reductions"),
        ),
        fix=(
            "DDP/FSDP1: `with model.no_sync():` around all micro-batches but the last",
            "FSDP2: model.set_requires_gradient_sync(False) until the last micro-batch",
            "accelerate: `with accelerator.accumulate(model):` and gradient_accumulation_steps in Accelerator",
        ),
        verify="`ddiag analyze NEW_TRACES`: reducing backward passes per optimizer step = 1",
        cost=step_cost(gain_ms, budget, facts),
        why="the same gradient buckets are reduced several times between two optimizer steps",
        doubt="if memory does not allow a full local gradient (sharded gradients), reducing each time is on purpose",
    )
