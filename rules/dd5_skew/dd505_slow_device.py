"""One rank's device runs the same kernels slower, and all others wait for it.

## Meaning
The late rank launches the same kernels as its peers, as often, but each takes longer: lower clocks (heat, power),
another
process on the device, a different part, ECC recovery.

## Impact
Every other rank waits for it in each step; the job runs at the speed of its slowest device.

## Diagnosis
Ratio of its kernel durations to its peers' for the same kernels.

## Mitigation
Check clocks, throttle reasons and other processes on that device; drain the node if it stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.skew import LateLimits, LateStory, late_findings, several_ranks

RULE = Rule(
    id="DD505",
    root_cause="RC-44",
    needs=(JobFacts, StepBudget, LateRanks),
    capture="profile all ranks over the same 5+ steps (torch.profiler on every rank, same schedule)",
    symptom="throughput decays after minutes, or since one node joined",
    evidence="one rank last in most collectives, and the same kernels take longer on it than on its peers",
    applies=several_ranks,
)


@dataclass(frozen=True)
class Limits(LateLimits):
    """The common limits of late ranks."""


STORY = LateStory(
    cause="device",
    because="because its device is slower",
    compare=(("kernel_slowdown", "duration of the same kernels"), ("compute_ms", "compute of this rank")),
    fix=(
        "`nvidia-smi --query-gpu=index,clocks.sm,temperature.gpu,power.draw,clocks_event_reasons.active "
        "--format=csv -l 1` on its host under load",
        "`nvidia-smi pmon -c 1`: another process on the device",
        "swap the rank to another device; if the slowness stays behind, drain the node and run `dcgmi diag -r 3`",
    ),
    verify="`ddiag analyze NEW_TRACES`: kernel slowdown of this rank within 3 % of 1.0",
    why="identical kernels are compared with identical kernels, so more work on this rank cannot explain it",
    doubt="kernels whose work depends on the data (sparse, embedding, variable length) can differ without a "
    "slow device",
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    yield from late_findings(signals, limits, STORY)
