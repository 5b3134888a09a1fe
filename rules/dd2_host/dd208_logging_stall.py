"""Logging or a metrics service holds up the training thread.

## Meaning
A logger, progress bar or tracker (Weights & Biases, TensorBoard, MLflow) does its work, including network or disk, on
the training thread.

## Impact
Usually on rank 0 only, so all other ranks wait for it in the next collective.

## Diagnosis
Time in logging calls per step. Logging also reads values from the device (`.item()`); that wait is DD202.

## Mitigation
Log less often, from one rank, through a background process; collect scalars on the device and read them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, PythonOverhead, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, name_ranks, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps

RULE = Rule(
    id="DD208",
    root_cause="RC-67",
    needs=(JobFacts, StepBudget, PythonOverhead),
    capture="profile 5+ steps, among them one that logs, with torch.profiler and with_stack=True",
    symptom="rank 0 is slow every N steps; WANDB_MODE=offline makes it faster",
    evidence="time in logging calls inside steps",
)


@dataclass(frozen=True)
class Limits:
    logging_share: float = 0.02
    """Logging / step for a finding."""
    warning_share: float = 0.05
    """From here it is a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    logging_ms: float = 1.0
    """Below this it is the price of one log line."""
    most_ranks: float = 0.5
    """Part of the ranks up to which those that log are named."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, overhead = signals[JobFacts], signals[StepBudget], signals[PythonOverhead]
    logging_ms = overhead.logging_ms_per_step
    share = logging_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if logging_ms < limits.logging_ms or share < limits.logging_share:
        return
    some = overhead.logging_ranks if len(overhead.logging_ranks) <= limits.most_ranks * len(facts.ranks) else ()
    whose = f" of {name_ranks(some)}" if some else ""
    yield Finding(
        title=f"logging on the training thread{whose} takes {logging_ms:.1f} ms per step ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.warning_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(ranks=some, where="logging"),
        evidence=(
            Evidence(
                "logging", round(logging_ms, 3), "ms/step", limits.logging_ms, f"{over_steps(budget)}, worst rank"
            ),
            Evidence("logging", round(share, 4), "of step", limits.logging_share, "time / median step"),
        ),
        fix=(
            "log every N steps (Hugging Face logging_steps=50, Lightning log_every_n_steps=50) and on rank 0 only",
            "hand values to a background thread or process (logging.handlers.QueueHandler); WANDB_MODE=offline and "
            "`wandb sync` later; TensorBoard SummaryWriter(flush_secs=120) on a local disk instead of NFS",
            "collect scalars in one device tensor and read it once per logging interval",
        ),
        verify="run 100 steps with the logger off: the difference in step time is the cost; then `ddiag analyze "
        f"NEW_TRACES` must show logging below {limits.logging_share:.0%} of the step",
        cost=step_cost(logging_ms, budget, facts),
        why="spans of logging calls lie on the training thread inside steps",
        doubt=doubts(facts, "a capture that happens to contain a logging step overstates the mean"),
    )
