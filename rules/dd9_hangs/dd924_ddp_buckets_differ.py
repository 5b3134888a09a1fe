"""The gradient buckets of DDP differ between ranks.

## Meaning
DDP fills buckets in the order in which gradients come. Parameters unused on one rank, shared modules or re-entrant
checkpointing change the order or the size of a bucket there.

## Impact
The reduction mixes or misses gradients and hangs.

## Diagnosis
At one sequence number all ranks call all_reduce in the reducer of DDP, with different sizes.

## Mitigation
Tell DDP about unused parameters, and wrap alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import BUCKETS, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, who

RULE = Rule(
    id="DD924",
    root_cause="RC-24",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="Expected to have finished reduction; hang with checkpointing and find_unused_parameters",
    evidence="all_reduce of different numbers of elements in the reducer of DDP",
    applies=stalls_for(BUCKETS),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} reduces another bucket: {stall.mismatch or place(stall)}",
        (
            "find_unused_parameters=True when the set varies, static_graph=True when it does not",
            "torch.utils.checkpoint(..., use_reentrant=False)",
            "same requires_grad and wrapping on all ranks",
        ),
        "TORCH_DISTRIBUTED_DEBUG=INFO prints equal bucket sizes on all ranks",
    )
