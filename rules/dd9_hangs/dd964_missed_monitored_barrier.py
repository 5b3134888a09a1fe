"""Ranks never came to a monitored barrier.

## Meaning
monitored_barrier names the ranks that did not come. They ended before it, were never started, or cannot be reached;
ranks that report errors from rank 0 are victims.

## Impact
The job ends at the barrier.

## Diagnosis
The list that rank 0 printed; a block of neighbouring ranks is one node.

## Mitigation
Look at the named ranks and their node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import NEVER_CAME, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, stall_finding, stalls_for, who

RULE = Rule(
    id="DD964",
    root_cause="RC-01",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="Ranks 4, 5, 6, 7 failed to pass monitoredBarrier",
    evidence="the ranks that monitored_barrier lists",
    applies=stalls_for(NEVER_CAME),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} never came to the monitored barrier",
        (
            "the first lines of the log of these ranks and the kernel log of their node: an earlier "
            "exception, OOM or a wrong network interface",
            "is every rank started and does it reach MASTER_ADDR? GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
            "on that node",
        ),
        "the barrier passes",
    )
