"""One rank arrives last at most collectives; the evidence does not say why.

## Meaning
The late rank is certain, its reason is not: its compute, input and host times do not differ enough from its peers' in
what was recorded.

## Impact
Every other rank waits for it.

## Diagnosis
The shortest duration of a collective marks the rank that came last. To learn why, record more steps on all ranks.

## Mitigation
Capture at least five steps on all ranks; look at the rank's host and device meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.skew import LateLimits, LateStory, late_findings, several_ranks

RULE = Rule(
    id="DD506",
    root_cause="RC-44",
    needs=(JobFacts, StepBudget, LateRanks),
    optional=(HostLoad,),
    capture="profile all ranks over the same 5+ steps (torch.profiler on every rank, same schedule)",
    symptom="long collectives on all ranks but one",
    evidence="one rank last in most collectives; no difference in compute, input or host time explains it",
    applies=several_ranks,
)


@dataclass(frozen=True)
class Limits(LateLimits):
    """The common limits of late ranks."""


STORY = LateStory(
    cause="unknown",
    because="(why is not in the evidence)",
    compare=(
        ("compute_ms", "compute of this rank"),
        ("input_ms", "input wait of this rank"),
        ("host_ms", "host time of this rank"),
    ),
    fix=(
        "profile 5+ consecutive steps on all ranks with activities CPU and CUDA, and analyze again",
        "meanwhile on its host: `py-spy dump --pid PID`, `nvidia-smi -q -d PERFORMANCE`, CPU load",
    ),
    verify="`ddiag analyze NEW_TRACES` names the reason, or shows waiting spread evenly over ranks",
    why="its collectives are the shortest of all ranks, which only the last to arrive can have",
    doubt="with one or two steps recorded, chance or the start of recording can make one rank late",
    like_starving=True,
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    yield from late_findings(signals, limits, STORY)
