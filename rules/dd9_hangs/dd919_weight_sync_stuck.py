"""The weights of a trainer wait for an inference engine, or the other way round.

## Meaning
In RL training the trainer broadcasts new weights to inference engines. When the engine is still generating, has
failed or runs another NCCL, the broadcast waits; often without any timeout.

## Impact
Trainer and engines stand still.

## Diagnosis
The missing rank generates or talks to the engine while the others wait in a broadcast.

## Mitigation
Look at the log of the engine first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import WEIGHT_SYNC, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD919",
    root_cause="RC-19",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="stuck in _broadcast_to_vllm or update_weights",
    evidence="broadcast that misses the rank which generates or syncs weights",
    applies=stalls_for(WEIGHT_SYNC),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} waits for the inference engine; {waiting(stall)} in {place(stall)}",
        (
            "read the log of the inference engine: an exception or HTTP 500 there comes first",
            "same NCCL version on both sides, NCCL_CUMEM_ENABLE=0, or --vllm_sync_backend gloo",
            "give the group of the weight sync a timeout longer than the longest rollout",
        ),
        "py-spy dump of both sides while it waits: the engine is in its receive",
    )
