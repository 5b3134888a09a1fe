"""One rank waits for its data, and all others wait for that rank.

## Meaning
The rank that reaches collectives last spends the difference in its data loader: its shard is slower to read or
decode, or
its host has fewer CPU cores for the workers.

## Impact
The slowest loader sets the pace of the whole job.

## Diagnosis
Input wait of the late rank against the median of its peers equals the delay the others see.

## Mitigation
Look at that rank's storage, CPU and shard; then at the loader's options.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.skew import LateLimits, LateStory, late_findings, several_ranks

RULE = Rule(
    id="DD502",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, LateRanks),
    capture="profile all ranks over the same 5+ steps (torch.profiler on every rank, same schedule)",
    symptom="one rank's data time is high, all others show long collectives",
    evidence="one rank last in most collectives, with more input wait per step than its peers",
    applies=several_ranks,
    explained_by=("DD101", "DD102", "DD103", "DD130", "DD131", "DD132", "DD133"),
)


@dataclass(frozen=True)
class Limits(LateLimits):
    """The common limits of late ranks."""


STORY = LateStory(
    cause="input",
    because="because its input is late",
    compare=(("input_ms", "input wait of this rank"), ("compute_ms", "compute of this rank")),
    fix=(
        "on that rank's host: CPU load, cgroup CPU limit, disk and network storage throughput",
        "give its loader more workers (num_workers, prefetch_factor=4, persistent_workers=True, pin_memory=True)",
        "shard the data evenly by bytes, not by file count",
    ),
    verify="`ddiag analyze NEW_TRACES`: input wait of this rank equal to its peers'",
    why="its collectives are the shortest of all ranks, which only the last to arrive can have, and its "
    "input wait explains it",
    doubt="if all ranks wait for input at the same moment, the pipeline as a whole is too slow (DD101)",
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    yield from late_findings(signals, limits, STORY)
