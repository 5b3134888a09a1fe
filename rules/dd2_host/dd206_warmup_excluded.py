"""The first recorded steps are warm-up and were left out of all figures.

## Meaning
Lazy initialisation, compilation, cuDNN autotuning, communicator set-up and the allocator's first requests make early
steps many times slower than the rest.

## Impact
None on the running job. Figures that include such steps overstate every cost.

## Diagnosis
Early steps clearly longer than the median of the later ones.

## Mitigation
Nothing to fix. To measure cleanly, let the profiler wait: `schedule(wait=10, warmup=2, active=5)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import polars as pl

from ddiag.model.signals import JobFacts, StepBudget
from ddiag.rulekit import Abstain, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.quality import confidence_for

RULE = Rule(
    id="DD206",
    root_cause="RC-64",
    needs=(JobFacts, StepBudget),
    capture="profile with step marks: torch.profiler.schedule(wait=10, warmup=2, active=5) and prof.step()",
    symptom="the first steps take seconds to minutes",
    evidence="early steps clearly longer than the later ones",
)
SCHEDULE = "https://docs.pytorch.org/docs/stable/profiler.html#torch.profiler.schedule"


@dataclass(frozen=True)
class Limits:
    slower: float = 1.5
    """Warm-up / steady step from which leaving it out is worth a line."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget = signals[JobFacts], signals[StepBudget]
    slow = _slow_first_steps(budget, limits)
    if slow.is_empty() or budget.step_ms <= 0:
        return
    left_out, warmup_ms = slow["step"].to_list(), median(slow["step_ms"].to_list())
    ratio, recorded = warmup_ms / budget.step_ms, budget.source == "recorded"
    names = ", ".join(map(str, left_out[:8])) + (f", … ({len(left_out)} in all)" if len(left_out) > 8 else "")
    steps = "steps" if len(left_out) > 1 else "step"
    yield Finding(
        title=f"{steps} {names} took {ratio:.1f} times as long as a steady step "
        f"and {'were' if len(left_out) > 1 else 'was'} left out as warm-up",
        severity=Severity.INFO,
        confidence=confidence_for(budget, facts),
        evidence=(
            Evidence("warm-up step", round(warmup_ms, 3), "ms", None, f"median of {steps} {names}"),
            Evidence("steady step", round(budget.step_ms, 3), "ms", None, "median over ranks and steady steps"),
            Evidence("ratio", round(ratio, 2), "times", limits.slower, "warm-up / steady"),
        ),
        fix=(
            "nothing is wrong, and every figure of this report leaves these steps out"
            if recorded
            else "nothing is wrong; to record steady steps only: torch.profiler.schedule(wait=10, warmup=2, active=5)",
            "if start-up itself matters: keep compiled code (TORCHINDUCTOR_CACHE_DIR on a disk that survives), and "
            "create communicators ahead with init_process_group(device_id=…)",
        ),
        verify='`ddiag query RUN "SELECT rank, step, step_ms FROM steps_budget ORDER BY step"`: the first steps are as '
        "short as the others"
        if recorded
        else "record steps 10 and later: this note disappears and the steady step stays the same",
        why="the excluded steps are the first ones and clearly longer than those after them",
        doubt="if slow steps come back later, they are no warm-up: record more steps",
        references=() if recorded else (SCHEDULE,),
    )


def _slow_first_steps(budget: StepBudget, limits: Limits) -> pl.DataFrame:
    """step, step_ms (median over ranks) of the left-out steps before the first steady one that are clearly longer."""
    steps = budget.table.group_by("step").agg(pl.col("step_ms").median(), pl.col("steady").any())
    first_steady = steps.filter("steady")["step"].min()
    early = steps.filter(~pl.col("steady") & (pl.col("step") < first_steady))
    return early.filter(pl.col("step_ms") >= limits.slower * budget.step_ms).sort("step")
