"""The GPU of a rank does not finish what the others have finished.

## Meaning
The rank enqueued the call, but its GPU never began it, or never ended what its peers ended: earlier work of that GPU
hangs, or the device or its link does.

## Impact
Everybody waits; nvidia-smi shows nothing wrong.

## Diagnosis
All others began (or completed) the call; this rank did not, and it is in no earlier call.

## Mitigation
Look at that GPU, then exchange the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import GPU_STUCK, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, who

RULE = Rule(
    id="DD942",
    root_cause="RC-42",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="the same pod is always in the hung set; nvidia-smi is clean",
    evidence="state of the call: begun or completed on the others, not on this rank",
    applies=stalls_for(GPU_STUCK),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"the GPU of {who(stall)} is stuck: {place(stall)} went on elsewhere",
        (
            "kernel log of the node (Xid, SXid, AER), nvidia-smi -q -d ECC,PERFORMANCE of that GPU, cuda-gdb "
            "on the process",
            "drain the node and run dcgmi diag -r 4 and pairwise nccl-tests; swap it and see whether the hang moves",
        ),
        "the job runs on other nodes",
        doubt="a kernel of the program that never ends looks alike: py-spy dump --native and cuda-gdb tell",
    )
