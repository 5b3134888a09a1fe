"""A rank left its loop after an error but its process lives.

## Meaning
The exception was caught, or the process waits in shutdown for threads, uploads or destroy_process_group. It will
never come to the next collective, and no launcher notices.

## Impact
All other ranks wait until their timeout.

## Diagnosis
The missing rank printed a traceback or is in shutdown code, and nobody saw its process end.

## Mitigation
End the process when its loop ends with an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import SWALLOWED, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD940",
    root_cause="RC-40",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="the log of one rank stops with a traceback hours earlier, yet its process lives",
    evidence="traceback or shutdown stack of the missing rank, and no death",
    applies=stalls_for(SWALLOWED),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} is out of its loop but its process lives; {waiting(stall)} in {place(stall)}",
        (
            "read the last traceback of that rank: it is the cause",
            "os._exit(1) (or @record of torch.distributed.elastic) where the loop catches exceptions; "
            "TORCH_NCCL_PROPAGATE_ERROR=1",
            "abort instead of destroy_process_group on errors; daemon threads",
        ),
        "py-spy dump --pid PID of that rank: it is not in the training loop",
    )
