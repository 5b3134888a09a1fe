"""One rank's host launches work late, and all others wait for that rank.

## Meaning
The device of the late rank is idle while its host is in Python, operators or the operating system: garbage collection,
logging on one rank, CPU contention, a wrong NUMA node, too few cores.

## Impact
Every other rank waits for it in each step.

## Diagnosis
Idle device time of the late rank, outside the data loader, against the median of its peers equals the delay.

## Mitigation
Look at what that process does between launches (py-spy), and where it runs (taskset, numactl, cgroup).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.skew import LateLimits, LateStory, late_findings, several_ranks

RULE = Rule(
    id="DD503",
    root_cause="RC-44",
    needs=(JobFacts, StepBudget, LateRanks),
    capture="profile all ranks over the same 5+ steps (torch.profiler on every rank, same schedule)",
    symptom="one rank lags by milliseconds to seconds; its GPU utilisation is lower",
    evidence="one rank last in most collectives, with more idle device time under host work than its peers",
    applies=several_ranks,
    explained_by=("DD203", "DD207", "DD208"),
)


@dataclass(frozen=True)
class Limits(LateLimits):
    """The common limits of late ranks."""


STORY = LateStory(
    cause="host",
    because="because its host is late",
    compare=(
        ("host_ms", "host time of this rank"),
        ("compute_ms", "compute of this rank"),
        ("input_ms", "input wait of this rank"),
    ),
    fix=(
        "`py-spy dump --pid PID` on this rank while it lags; look for logging, gc, tokenisation, "
        "checkpointing on one rank",
        "CPU affinity: `taskset -cp PID`, `nvidia-smi topo -m`; torchrun --numa-binding, deepspeed "
        "--bind_cores_to_rank",
        "gc.disable() with a gc.collect(1) every N steps on all ranks at once",
    ),
    verify="`ddiag analyze NEW_TRACES`: host time of this rank equal to its peers'",
    why="its collectives are the shortest of all ranks, which only the last to arrive can have, and its host "
    "time explains it",
    doubt="other processes that load its host take the time from it just as well: look at the host first",
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    yield from late_findings(signals, limits, STORY)
