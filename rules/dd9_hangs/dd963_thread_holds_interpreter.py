"""A rank is stuck in a native call or holds the interpreter lock.

## Meaning
A C extension that keeps the GIL, or a CUDA call that does not return, stops every Python thread of the process: it
comes to no collective, and its watchdog may stop as well.

## Impact
All other ranks wait for it.

## Diagnosis
The stack of the missing rank is in a CUDA call, or its thread holds the GIL outside any collective.

## Mitigation
Release the GIL in that call, or find out why CUDA does not return.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import HEARTBEAT, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, doing, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD963",
    root_cause="RC-10",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="one rank does not react, not even to py-spy without --native",
    evidence="stack of the missing rank: GIL held, or inside a CUDA call",
    applies=stalls_for(HEARTBEAT),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} is stuck {doing(stall)}; {waiting(stall)} in {place(stall)}",
        (
            "py-spy dump --native --pid PID and gdb -p PID: which native call holds on",
            "release the GIL around long native calls; move them to a process of their own",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only delays the end",
        ),
        "py-spy dump of that rank shows it back in the loop",
    )
