"""Generation or evaluation under sharded parameters ends on one rank before the others.

## Meaning
With ZeRO-3 or FSDP every forward pass gathers parameters, also in generate(). A rank whose sequences end earlier
stops gathering, and the others wait.

## Impact
The job hangs in rollouts or in predict_with_generate.

## Diagnosis
The missing rank is in generate() or just left it, and the others wait in a parameter all-gather.

## Mitigation
Let all ranks decode equally many tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import GENERATION, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD918",
    root_cause="RC-18",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="hang in an RLHF rollout or in predict_with_generate",
    evidence="parameter all-gather of the others; generate() in the stack or words of the missing rank",
    applies=stalls_for(GENERATION),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} decodes another number of tokens; {waiting(stall)} in {place(stall)}",
        (
            "model.generate(..., synced_gpus=True)",
            "gather the parameters once for generation: ds3_gather_for_generation=True (trl), "
            "FSDP.summon_full_params, or hybrid engine",
            "pad prompts and set equal max_new_tokens",
        ),
        "with min_new_tokens = max_new_tokens the hang is gone",
    )
