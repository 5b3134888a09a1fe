"""Every launch waits for its kernel: CUDA_LAUNCH_BLOCKING is on.

## Meaning
`CUDA_LAUNCH_BLOCKING=1` (or HIP_LAUNCH_BLOCKING=1) makes each launch return only when the kernel has ended. It is a
debugging aid left over in the environment.

## Impact
Host and device never overlap, nor do communication and compute.

## Diagnosis
Nearly all launch calls end after the kernel they launched.

## Mitigation
Unset the variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLaunch, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD804",
    root_cause="RC-96",
    needs=(JobFacts, StepBudget, HostLaunch),
    capture="profile 3+ steps with torch.profiler, activities CPU and CUDA",
    symptom="training is several times slower than last week, utilisation low",
    evidence="more than 90 % of launch calls end after their kernel",
)


@dataclass(frozen=True)
class Limits:
    blocking_share: float = 0.9
    """Launch calls that end after their kernel / all; asynchronous launches stay near 0."""
    critical_share: float = 0.25
    """Idle device time / step from which it is critical."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, launch = signals[JobFacts], signals[StepBudget], signals[HostLaunch]
    if launch.blocking_launch_share is None or launch.blocking_launch_share < limits.blocking_share:
        return
    idle_ms = launch.launch_gap_ms
    share = idle_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    yield Finding(
        title=f"{launch.blocking_launch_share:.0%} of launches block until their kernel has ended",
        severity=severity_for(share, warning=0.0, critical=limits.critical_share),
        confidence=Confidence.HIGH,
        culprits=Culprits(where="CUDA_LAUNCH_BLOCKING=1"),
        evidence=(
            Evidence("blocking launches", round(launch.blocking_launch_share, 3), "of all", limits.blocking_share, ""),
            Evidence("device idle", round(idle_ms, 3), "ms/step", None, "waiting for the next launch"),
        ),
        fix=(
            "unset CUDA_LAUNCH_BLOCKING (HIP_LAUNCH_BLOCKING, AMD_SERIALIZE_KERNEL) in the job's environment",
            "look for it in the image, the launcher script and /etc/environment",
        ),
        verify="`env | grep -i LAUNCH_BLOCKING` prints nothing; `ddiag analyze NEW_TRACES`: launches return early",
        cost=step_cost(idle_ms, budget, facts),
        why="an asynchronous launch returns within microseconds, long before its kernel ends",
        doubt="a profiler mode that serialises kernels (CUPTI metrics) has the same effect",
    )
