"""Ranks of one group call different collectives: their code took different paths.

## Meaning
At one sequence number the members of a group call different operations, sizes or types: a branch that depends on the
data (a modality that is missing in a batch, an expert that got no token, a conditional loss) leads some ranks another
way.

## Impact
The collective never ends, or ends with mixed-up data. A longer timeout does not help.

## Diagnosis
The calls of all members at that number are compared by majority, so any rank can be the odd one; sizes follow the
rule of the operation.

## Mitigation
Make every rank run the same modules in the same order, whatever is in its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import DIVERGENT, SKIPPED_STEP, Events, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, who

RULE = Rule(
    id="DD903",
    root_cause="RC-03",
    needs=(Stall,),
    optional=(Events,),
    capture=CAPTURE,
    symptom="random hang after some steps; works with ZeRO-2, hangs with ZeRO-3",
    evidence="at one sequence number of one group operation, size or type differ between ranks",
    applies=stalls_for(DIVERGENT, SKIPPED_STEP),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall, events = signals[Stall], signals.get(Events)
    if stall.cause == SKIPPED_STEP and events is not None and events.has("trainer.nan_skip"):
        return  # DD939 says it better
    yield stall_finding(
        stall,
        f"{who(stall)} took another path: {stall.mismatch or place(stall)}",
        (
            "run every module on every rank: dummy input for a missing modality, or loss = loss + 0 * "
            "sum(p.sum() for p in unused)",
            "DeepSpeed ZeRO-3 with experts: set_z3_leaf_modules(model, [SparseMoeBlock]) or "
            "zero_optimization.leaf_module",
            "decide branches together: all_reduce the flag before the if; group samples by modality in the sampler",
        ),
        "TORCH_DISTRIBUTED_DEBUG=DETAIL for 100 steps reports no mismatch",
        doubt="the majority is taken to be right; when most ranks took the wrong branch, the odd one is the right one",
    )
