"""A rank did not come to a collective; nothing says what it does instead.

## Meaning
The others wait in a call that this rank has not issued. Whether it computes, sleeps, reads data, hangs in user code
or is gone is not in the evidence.

## Impact
All ranks stand still until the timeout.

## Diagnosis
Positions of all ranks in all groups; those who wait are traced to the one they wait for.

## Mitigation
Take the stack of the named rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import UNKNOWN, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View, name_ranks
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, who

RULE = Rule(
    id="DD962",
    root_cause="RC-40",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="NCCL timeout on all ranks but one",
    evidence="who waits for whom, over all groups, ends at this rank",
    applies=stalls_for(UNKNOWN),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        _title(stall),
        (
            "py-spy dump --pid PID (with --native) of that rank while it hangs, or ddiag hang --live RUN",
            "its log just before the hang, dmesg of its node; is its process alive?",
            "next time: ddiag run -- COMMAND takes stacks of all ranks by itself",
        ),
        "the stack of the rank shows the line that keeps it",
    )


def _title(stall: Stall) -> str:
    waiting = f"{len(stall.victims):,} ranks wait in {place(stall)}"
    if not stall.culprits:
        could = f"; {name_ranks(stall.candidates)} left no evidence" if stall.candidates else ""
        return f"{waiting}, and the evidence does not say for whom{could}"
    if stall.verdict == "suspect_by_absence":
        return f"{who(stall)} left no dump or line, and {waiting}"
    return f"{who(stall)} did not come: {waiting}"
