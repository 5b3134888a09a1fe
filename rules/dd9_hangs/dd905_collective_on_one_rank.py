"""One rank saves or evaluates alone, and calls collectives that the others do not.

## Meaning
Saving a sharded model and evaluating are collective. Inside `if rank == 0:` the one rank gathers from ranks that
never call the gather, while they wait for it in the next step or at a barrier.

## Impact
The job hangs at every save or evaluation. A longer timeout helps only when that rank needs no other.

## Diagnosis
The missing (or odd) rank is in checkpoint or evaluation code, the others are not.

## Mitigation
Call save and evaluation on all ranks; keep only the writing of the file in the `if`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import SINGLE_RANK_SAVE, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, doing, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD905",
    root_cause="RC-05",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="hangs when saving, or when evaluation starts",
    evidence="stack, phase or words of the missing rank: checkpoint or evaluation, on this rank only",
    applies=stalls_for(SINGLE_RANK_SAVE),
    explained_by=CAUSES,
)


_SAVE = (
    "call it on every rank: engine.save_checkpoint(), accelerator.save_state(), FSDP.state_dict_type(...); only file "
    "writing under if rank == 0"
)
_EVALUATE = (
    "evaluate on all ranks (gather the metrics), or on one rank with model.module and a barrier of its own with a long "
    "timeout"
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    evaluates = stall.phase == "evaluation"
    yield stall_finding(
        stall,
        f"{who(stall)} is {doing(stall)} alone; {waiting(stall)} in {place(stall)}",
        (_EVALUATE, _SAVE) if evaluates else (_SAVE, _EVALUATE),
        f"`py-spy dump --pid PID` of this rank and of another during {'an evaluation' if evaluates else 'a save'}: "
        "both are in it",
    )
