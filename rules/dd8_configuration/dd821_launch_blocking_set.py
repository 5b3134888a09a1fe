"""CUDA_LAUNCH_BLOCKING=1 is set: every launch waits for its kernel.

## Meaning
A debugging aid was left in the environment.

## Impact
Host and device never overlap, nor do communication and compute: a fraction of the speed.

## Diagnosis
The variable in the job's environment.

## Mitigation
Unset it, once the bug it was set for is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Finding, Rule, Severity, View
from ddiag.rulekit.proof import shown
from ddiag.rulekit.transports import TRUE

NAMES = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")

RULE = Rule(
    id="DD821",
    root_cause="RC-96",
    needs=(Settings,),
    capture="env of a rank",
    symptom="training is several times slower than last week, utilisation low",
    evidence="CUDA_LAUNCH_BLOCKING=1 in the environment",
    applies=lambda signals: (
        (settings := signals.get(Settings)) is not None and any(settings.of("env", name) for name in NAMES)
    ),
)


@dataclass(frozen=True)
class Limits:
    names_shown: int = 3


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = [
        one for name in NAMES for one in signals[Settings].of("env", name) if one.value.strip().lower() in (*TRUE, "3")
    ]
    if not found:
        return
    yield Finding(
        title=f"{found[0].key}={found[0].value} is set: every launch waits for its kernel",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(where=found[0].key),
        evidence=tuple(shown(one.key, one) for one in found[: limits.names_shown]),
        fix=(f"unset {found[0].key} in image, launcher script and /etc/environment",),
        verify="`env | grep -i LAUNCH_BLOCKING` prints nothing; `ddiag analyze NEW_TRACES`: launches return early",
        why="the variable does exactly this",
    )
