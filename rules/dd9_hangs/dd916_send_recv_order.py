"""Sends and receives are posted in an order in which each waits for the other.

## Meaning
Two ranks that both send first, or receives that nobody sends for, form a circle: a large send ends only when the
other side receives.

## Impact
The pipeline hangs in its first steps; which ranks complain changes with every retry.

## Diagnosis
Pairs are matched send by send in each group; the circle is printed with the line of code of each side.

## Mitigation
Post both directions together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import P2P_ORDER, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, stall_finding, stalls_for, who

RULE = Rule(
    id="DD916",
    root_cause="RC-16",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="pipeline job stuck in its first steps; another rank is blamed on each retry",
    evidence="open sends and receives of a group close a circle of ranks",
    applies=stalls_for(P2P_ORDER),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"a circle of sends and receives: {who(stall)} wait for each other",
        (
            "torch.distributed.batch_isend_irecv for both directions, or odd ranks receive first",
            "Megatron-LM: --no-overlap-p2p-communication; variable_seq_lengths needs a recent version",
            "one P2P call per direction and microbatch on both sides: compare the number of microbatches",
        ),
        "one microbatch runs through; Flight Recorder dumps show equal counts of sends and receives for each pair",
    )
