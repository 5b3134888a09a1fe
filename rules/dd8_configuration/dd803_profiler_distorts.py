"""The profiler's own cost distorts host times in this trace.

## Meaning
Python stacks were recorded. That multiplies the host cost of each call, so idle device time is overstated and the
job looks
more launch-bound than it is.

## Impact
None on the job without the profiler; the figures of host time in this report are upper bounds.

## Diagnosis
Stacks are present in the trace and the device idles under host work.

## Mitigation
Record without `with_stack` to measure, with it to find the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD803",
    root_cause="RC-95",
    needs=(JobFacts, StepBudget),
    capture="any profiler trace",
    symptom="the profiled run is much slower than the job",
    evidence="Python stacks recorded and host time above a tenth of the step",
    applies=lambda signals: (signals.get(JobFacts) or JobFacts((), None, "other")).with_stack,
)


@dataclass(frozen=True)
class Limits:
    host_share: float = 0.10
    """Idle device time under host work / step from which the distortion matters."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    budget = signals[StepBudget]
    share = budget.share("host_ms")
    if not budget.on_device or share < limits.host_share:
        return
    yield Finding(
        title=f"Python stacks were recorded: the {share:.0%} of the step spent waiting for the host is an upper bound",
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        evidence=(
            Evidence("host time", round(budget.mean("host_ms"), 3), "ms/step", None, "device idle under host work"),
            Evidence("share of the step", round(share, 4), "of step", limits.host_share, ""),
        ),
        fix=("profile again with with_stack=False before acting on host findings",),
        verify="`ddiag analyze` on a trace without stacks: host share of the step",
        why="recording a Python stack per call slows every host call",
        doubt="a job that is launch-bound without the profiler as well",
    )
