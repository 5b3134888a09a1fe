"""A rank ran out of data and left the loop while the others still step.

## Meaning
Every rank must call the same collectives. A rank with fewer batches goes on to the end of the epoch (a barrier,
evaluation, exit), and the others wait for it in the next gradient reduction.

## Impact
The job hangs at the end of an epoch or of an evaluation until the watchdog ends it. A longer timeout does not help.

## Diagnosis
The rank that is missed (or that calls something else) has said that it finished, is in evaluation or at a barrier, or
is further than all others; nobody died.

## Mitigation
Give all ranks equally many batches, or let the ones that end early take part in the collectives of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import UNEVEN, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD902",
    root_cause="RC-02",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="hang at the end of an epoch; the last progress bars differ by rank",
    evidence="the rank that does not come has finished its data; it is ahead of the others, not behind",
    applies=stalls_for(UNEVEN),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} ran out of batches and left the loop; {waiting(stall)} in {place(stall)}",
        (
            "DistributedSampler(dataset, drop_last=True), or pad the last batch; accelerate: "
            "even_batches=True or dispatch_batches=True",
            "iterable or streaming datasets: make the number of shards a multiple of the world size "
            "(split_by_rank, .with_epoch)",
            "DDP: with model.join(): around the loop, so that early ranks shadow the collectives",
        ),
        "all_reduce MIN and MAX of the number of batches before the epoch: they are equal",
        doubt="a rank that left for another reason (early stopping, an exception that was caught) looks alike: "
        "look at its log",
    )
