"""Parameter gathers start only when the previous unit has finished: no prefetch.

## Meaning
Units have a sensible size, but each gather is issued after the compute before it has ended, so compute waits for every
one of them.

## Impact
Each unit's gather time is added to forward, and often to backward.

## Diagnosis
Share of gathers that start while the previous unit still computes, and the exposed gather time.

## Mitigation
Turn prefetch on, or give the host the head start it needs (a launch-bound host cannot prefetch).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, ShardUnits, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD409",
    root_cause="RC-54",
    needs=(JobFacts, StepBudget, ShardUnits),
    capture="profile with torch >= 2.3 over 5+ steps of a sharded job, activities CPU and CUDA",
    symptom="gaps before every layer of an FSDP model",
    evidence="fewer than a third of gathers overlap the previous unit's compute; exposed gathers above 5 % of the step",
    applies=lambda signals: signals.has(ShardUnits),
    explained_by=("DD201", "DD202", "DD407", "DD408"),
)


@dataclass(frozen=True)
class Limits:
    prefetched_share: float = 0.34
    """Prefetched gathers / all, below which prefetch is taken for off (one of the two passes may lack it)."""
    gathers_per_step: float = 4.0
    """With fewer there is nothing to prefetch."""
    exposed_share: float = 0.05
    """Exposed gather time / step for a warning."""
    critical_share: float = 0.30
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, units = signals[JobFacts], signals[StepBudget], signals[ShardUnits]
    if units.prefetched_share is None or units.gathers_per_step < limits.gathers_per_step:
        return
    share = units.gather_exposed_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if units.prefetched_share >= limits.prefetched_share or share < limits.exposed_share:
        return
    yield Finding(
        title=f"only {units.prefetched_share:.0%} of parameter gathers start before the previous unit ends",
        severity=severity_for(share, warning=limits.exposed_share, critical=limits.critical_share),
        confidence=Confidence.HIGH if budget.n_steps >= 3 else Confidence.MEDIUM,
        evidence=(
            Evidence(
                "prefetched gathers", round(units.prefetched_share, 3), "of all", limits.prefetched_share, "starts"
            ),
            Evidence("gathers per step", round(units.gathers_per_step, 1), "", limits.gathers_per_step, "all_gather"),
            Evidence("exposed gathers", round(units.gather_exposed_ms, 3), "ms/step", None, "not covered by compute"),
        ),
        fix=(
            "FSDP1: forward_prefetch=True (static graphs), backward_prefetch=BackwardPrefetch.BACKWARD_PRE, "
            "limit_all_gathers=True",
            "FSDP2: module.set_modules_to_forward_prefetch([...]) and set_modules_to_backward_prefetch([...])",
            "DeepSpeed ZeRO-3: overlap_comm: true and a larger stage3_prefetch_bucket_size (elements)",
        ),
        verify="`ddiag analyze NEW_TRACES`: exposed gathers below 2 % of the step",
        cost=step_cost(units.gather_exposed_ms, budget, facts),
        why="gathers begin when compute has already stopped",
        doubt="if the host is late (launch-bound, synchronising), prefetch is on but issued too late: see DD201, DD202",
    )
