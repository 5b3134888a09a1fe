"""The timeout is shorter than a phase that is slow but sound.

## Meaning
The missing rank works: it evaluates, generates, compiles or saves, and would have come. The timeout of the process
group was set below what that phase takes.

## Impact
The job is ended in a phase that always takes that long.

## Diagnosis
A timeout far below the default, and a missing rank that is seen in a long phase.

## Mitigation
Set the timeout where the group is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import SHORT_TIMEOUT, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, stall_finding, stalls_for, who

RULE = Rule(
    id="DD961",
    root_cause="RC-84",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="times out at exactly the configured value in a phase that is slow but alive",
    evidence="timeout of the call below three minutes; the missing rank is in a long phase",
    applies=stalls_for(SHORT_TIMEOUT),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"the timeout of {(stall.timeout_ms or 0) / 1000:g} s is shorter than the {stall.phase} of {who(stall)}",
        (
            "init_process_group(timeout=timedelta(minutes=60)) where the group is made (a later setting has "
            "no effect); new_group(timeout=...) for others",
            "Trainer: ddp_timeout; accelerate: InitProcessGroupKwargs(timeout=...); DeepSpeed: "
            "DEEPSPEED_TIMEOUT (minutes)",
        ),
        "with four times the timeout the missing rank arrives",
    )
