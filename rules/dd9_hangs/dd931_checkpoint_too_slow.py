"""Saving or loading a checkpoint takes longer than the timeout.

## Meaning
Every rank is in the checkpoint. A coordinator gathers parts or plans of all ranks, or storage is slow, and the wait
runs into the timeout.

## Impact
The job dies while saving, the more often the larger it is.

## Diagnosis
The wait that timed out belongs to checkpoint code and all ranks that are seen are in it.

## Mitigation
Save in parallel, and give the group its own timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import SLOW_CHECKPOINT, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, stall_finding, stalls_for, who

RULE = Rule(
    id="DD931",
    root_cause="RC-31",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="timeouts while saving, only at large scale",
    evidence="gloo or NCCL wait inside checkpoint code, with every rank in the checkpoint",
    applies=stalls_for(SLOW_CHECKPOINT),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"the checkpoint takes longer than the timeout; the coordinator, {who(stall)}, gathers every part",
        (
            "SHARDED_STATE_DICT or torch.distributed.checkpoint with async_save and one file per rank; "
            "enable_plan_caching",
            'here a longer timeout helps: new_group(backend="gloo", timeout=timedelta(hours=2)) passed as '
            "process_group to the save",
            "DeepSpeed: stage3_gather_16bit_weights_on_model_save: false",
        ),
        "time the save on every rank; one run with saving off does not stop there",
        doubt="a rank that died in the save looks alike: look for an exception before the timeout",
    )
