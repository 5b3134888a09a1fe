"""Ranks launch two communicators in different order and wait for each other.

## Meaning
Kernels of two process groups on the same GPUs must start in the same order on all ranks. Where streams or threads let
the order vary, each rank holds what the other waits for.

## Impact
The job hangs at 100 % utilisation, sometimes only; with CUDA_LAUNCH_BLOCKING=1 it runs.

## Diagnosis
In every group all calls agree, but the ranks are at different groups and wait for each other in a circle. Whose order
differs from that of most is named.

## Mitigation
Let one order be: streams that depend on each other, or the launch order that NCCL keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import COMM_ORDER, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, stall_finding, stalls_for, who

RULE = Rule(
    id="DD917",
    root_cause="RC-17",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="TP with FSDP or EP hangs at 100 % utilisation, and not with CUDA_LAUNCH_BLOCKING=1",
    evidence="a circle of ranks through two or more groups whose calls agree",
    applies=stalls_for(COMM_ORDER),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"groups are called in different order: {who(stall)}, circle through {len(stall.cycle)} ranks",
        (
            "NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26 and later), and collectives of one thread only",
            "serialise: wait_stream between the streams of the two groups; CUDA_DEVICE_MAX_CONNECTIONS as the"
            " framework says (1 for Megatron TP overlap)",
            "look at the lines of code of the two calls: a branch that swaps them",
        ),
        "the job runs with NCCL_LAUNCH_ORDER_IMPLICIT=1",
    )
