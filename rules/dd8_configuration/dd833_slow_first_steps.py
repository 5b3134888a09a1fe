"""The first steps are slow, as they always are: compilation, autotuning and first connections.

## Meaning
The first iterations compile kernels, build NCCL's channels, tune algorithms and fill caches. They say nothing about the
speed of the run.

## Impact
None after the start; averages that include them mislead.

## Diagnosis
The first printed step times against the median of the later ones.

## Mitigation
None; leave them out of comparisons. Persistent caches shorten them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Metrics
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD833",
    root_cause="RC-64",
    needs=(Metrics,),
    capture="a log with the time of at least ten steps",
    symptom="step 1 takes 60 to 300 s",
    evidence="only the first step times are far above the later median",
    applies=lambda signals: (m := signals.get(Metrics)) is not None and not m.series("step_ms").is_empty(),
)


@dataclass(frozen=True)
class Limits:
    ratio: float = 3.0
    """First / median of the later half."""
    values: int = 5


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    rows = signals[Metrics].series("step_ms").drop_nulls("value")
    times = rows["value"].to_list()
    if len(times) < limits.values or times[0] <= 0:
        return
    steady = statistics.median(times[len(times) // 2 :])
    slow = next((place for place, value in enumerate(times) if value < limits.ratio * steady), len(times))
    if slow == 0 or slow > len(times) // 2:
        return
    yield Finding(
        title=f"the first {'step takes' if slow == 1 else f'{slow} printed steps take'} up to "
        f"{max(times[:slow]) / 1000:.3g} s, later ones {steady / 1000:.3g} s: warm-up, not a fault",
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        culprits=Culprits(),
        evidence=(Evidence("first / later median", round(times[0] / steady, 1), "times", limits.ratio, "step time"),),
        fix=(
            "leave the first 10 steps out of comparisons",
            "TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR on a disk that stays: the next start is shorter",
        ),
        verify="compare step 50 with step 50",
        why="only the first values are high",
    )
