"""A barrier runs in every training step.

## Meaning
`dist.barrier()` (or its disguise, an all-reduce of one element followed by a wait) stands in the loop. Collectives
already
order the ranks; the barrier only makes everybody wait for the slowest once more and drains the device queue.

## Impact
Its latency, the drained launch queue after it, and each rank's jitter added up instead of averaged out.

## Diagnosis
Barriers per step and the time ranks spend in them. Waiting inside the barrier is the late rank's doing (see DD5xx);
what
the barrier itself costs is the rest.

## Mitigation
Remove it, or keep it around checkpoints only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import Collectives, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.cost import step_cost

RULE = Rule(
    id="DD411",
    root_cause="RC-94",
    needs=(JobFacts, StepBudget, Collectives),
    capture="profile 5+ steps with torch.profiler on two or more ranks",
    symptom="every rank always ends a step at the same time; jitter adds up",
    evidence="one or more barriers in each steady step",
)


@dataclass(frozen=True)
class Limits:
    count_per_step: float = 0.9
    """Barriers per step from which they belong to the loop (a checkpoint barrier is rarer)."""
    warning_share: float = 0.03
    """Exposed time in barriers / step for a warning; below it is information."""
    notice_share: float = 0.002
    """Below this it is not worth a line."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, comm = signals[JobFacts], signals[StepBudget], signals[Collectives]
    barriers = comm.summary.filter(pl.col("op") == "barrier")
    count = float(barriers["count_per_step"].sum())
    if count < limits.count_per_step or budget.n_steps < 2 or budget.step_ms <= 0:
        return
    exposed_ms = float(barriers["exposed_ms"].fill_null(0.0).sum())
    wait_ms = float(barriers["wait_ms"].fill_null(0.0).sum())
    share = exposed_ms / budget.step_ms
    if share < limits.notice_share:
        return
    own_ms = max(exposed_ms - wait_ms, 0.0)
    yield Finding(
        title=f"{count:.0f} {'barrier' if round(count) == 1 else 'barriers'} in every step, "
        f"{exposed_ms:.1f} ms of it exposed",
        severity=Severity.WARNING if share >= limits.warning_share else Severity.INFO,
        confidence=Confidence.HIGH if comm.matched_ranks >= 2 else Confidence.MEDIUM,
        culprits=Culprits(groups=tuple(sorted(set(barriers["group"].to_list())))),
        evidence=(
            Evidence("barriers", round(count, 2), "per step", limits.count_per_step, f"{budget.n_steps} steady steps"),
            Evidence("exposed", round(exposed_ms, 3), "ms/step", None, "barriers not covered by compute"),
            Evidence("of it waiting", round(wait_ms, 3), "ms/step", None, "for the last rank to arrive"),
        ),
        fix=(
            "remove dist.barrier() / accelerator.wait_for_everyone() from the training loop",
            "for timing use CUDA events instead of barrier + synchronize",
        ),
        verify="`ddiag analyze NEW_TRACES`: no barrier in the communication table",
        cost=step_cost(own_ms, budget, facts),
        why="barriers repeat in each steady step",
        doubt="the waiting part moves to the next collective when the barrier goes; only the rest is gained for sure",
    )
