"""One rank computes longer than the others, and they wait for it.

## Meaning
The same rank reaches most collectives last, and its own device work per step is longer than its peers', spread over
more or larger kernels: it has more to do (longer sequences, more experts' tokens, an uneven stage, extra work on one
rank).

## Impact
Every other rank waits for it in each step; the collective looks slow on all ranks but this one.

## Diagnosis
The shortest duration of a collective marks the rank that came last. Compute time of that rank against the median of
its peers says that the delay was made by more compute, not by input, host or slower kernels.

## Mitigation
Balance the work; keep rank-0-only extras (evaluation, extra losses) out of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.skew import LateLimits, LateStory, late_findings, several_ranks

RULE = Rule(
    id="DD501",
    root_cause="RC-44",
    needs=(JobFacts, StepBudget, LateRanks),
    optional=(HostLoad,),
    capture="profile all ranks over the same 5+ steps (torch.profiler on every rank, same schedule)",
    symptom="all GPUs show 100 % utilisation, all-reduce takes long on all ranks but one",
    evidence="one rank last in most collectives, with more compute per step than its peers",
    applies=several_ranks,
)


@dataclass(frozen=True)
class Limits(LateLimits):
    """The common limits of late ranks."""


STORY = LateStory(
    cause="compute",
    because="because it computes longer",
    compare=(
        ("compute_ms", "compute of this rank"),
        ("input_ms", "input wait of this rank"),
        ("host_ms", "host time of this rank"),
    ),
    fix=(
        "balance work per rank: length-grouped or packed batches, equal pipeline stages, expert load balancing",
        "move rank-0-only work (evaluation, extra metrics, plotting) out of the training step",
        "if this rank always owns the same data shard, reshuffle the shards",
    ),
    verify="`ddiag analyze NEW_TRACES`: no rank with more than 1.5x its fair share of the waiting; compute "
    "per rank within 3 %",
    why="its collectives are the shortest of all ranks, which only the last to arrive can have, and its "
    "compute is longer",
    doubt="if the extra compute follows the host when ranks are swapped, the device is slower, not the work "
    "larger (DD505)",
    like_starving=True,
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    yield from late_findings(signals, limits, STORY)
