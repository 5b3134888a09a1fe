"""Autograd anomaly detection is on.

## Meaning
`set_detect_anomaly(True)` records a Python traceback for every forward operator and checks every gradient for NaN.

## Impact
Each check reads a flag from the device and so blocks the host; steps are commonly 1.5-3 times as long.

## Diagnosis
The checks that anomaly mode adds to every backward operator.

## Mitigation
Switch it off in production; use it only around the step under suspicion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, PythonOverhead, StepBudget, SyncPoints
from ddiag.rulekit import (
    Abstain,
    Confidence,
    Culprits,
    Evidence,
    Finding,
    Rule,
    Severity,
    View,
    severity_for,
    step_cost,
)

RULE = Rule(
    id="DD1103",
    root_cause="RC-100",
    needs=(JobFacts, StepBudget, PythonOverhead),
    optional=(SyncPoints,),
    capture="profile 2+ steps with torch.profiler, activities CPU and CUDA",
    symptom="everything is much slower since someone looked for a NaN",
    evidence="the operators that anomaly mode adds to backward",
    references=("https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection",),
)


@dataclass(frozen=True)
class Limits:
    critical_share: float = 0.25
    """Idle behind blocking calls / step from which it is critical rather than a warning."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget = signals[JobFacts], signals[StepBudget]
    if not signals[PythonOverhead].anomaly_mode:
        return
    sync = signals.get(SyncPoints)
    stall_ms = sync.stall_ms if sync is not None else 0.0
    share = stall_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    severity = severity_for(share, warning=0.0, critical=limits.critical_share)
    yield Finding(
        title="autograd anomaly detection is on"
        + (f": its checks leave the device idle for up to {stall_ms:.1f} ms per step" if share >= 0.01 else ""),
        severity=max(severity, Severity.WARNING, key=lambda s: -s.order),
        confidence=Confidence.HIGH,
        culprits=Culprits(where="torch.autograd.set_detect_anomaly"),
        evidence=(
            Evidence("anomaly mode", "on", "", "off", "operators it adds to backward"),
            Evidence("idle after blocking calls", round(stall_ms, 3), "ms/step", None, "all of them, worst rank")
            if sync is not None
            else Evidence("idle after blocking calls", "not known", "", None, "host-only trace"),
        ),
        fix=(
            "remove torch.autograd.set_detect_anomaly(True) and detect_anomaly() from the job (Lightning: "
            "Trainer(detect_anomaly=False))",
            "to catch a NaN cheaply: check the loss with torch.isfinite every N steps, and switch anomaly mode on "
            "only to replay the failing batch",
        ),
        verify="`ddiag analyze NEW_TRACES`: this finding is gone and the step is shorter",
        cost=step_cost(stall_ms, budget, facts),
        why="only anomaly mode adds these checks to backward",
        doubt="its recording of tracebacks costs host time beyond the idle time stated here",
    )
