"""A member of a sub-group does not call its collective.

## Meaning
new_group must be called by all ranks in one order, and a collective on a group by all its members. Here a member
never came to one of the first calls of its group.

## Impact
The group waits, and with it everything behind.

## Diagnosis
The group has more members than came; group ranks are not global ranks: the member is named by its global rank.

## Mitigation
Call it on every member.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import SUBGROUP, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, who

RULE = Rule(
    id="DD938",
    root_cause="RC-38",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="all ranks hang at the creation of a group or in a sub-group",
    evidence="a first call of a sub-group misses a member that works elsewhere or says that it skipped it",
    applies=stalls_for(SUBGROUP),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} never called {place(stall)} of its sub-group",
        (
            "every member calls every collective of the group, also with nothing to send",
            "call new_group on all ranks in the same order, or use DeviceMesh",
            "source and destination of collectives are global ranks (group_src for group ranks)",
        ),
        "print dist.get_process_group_ranks(group) on all ranks; the dumps show equal counts for the group",
    )
