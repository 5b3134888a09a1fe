"""The nodes' clocks differ: the order of their logs is not the order of events.

## Meaning
Time stamps of different nodes are compared although their clocks are apart, or print no zone.

## Impact
The first failure is looked for on the wrong node.

## Diagnosis
NCCL RAS says that clocks are not synchronized; a collective's time-out carries stamps far apart.

## Mitigation
NTP or chrony on all nodes; compare only stamps of one node, or align by a common collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD982",
    root_cause="RC-82",
    needs=(Events,),
    capture="chronyc tracking on every node",
    symptom="rank 12 seems to fail before rank 3, but its clock is 40 s ahead",
    evidence="RAS: negative travel times; stamps of one collective's time-outs far apart",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("log.clock_skew"),
)


@dataclass(frozen=True)
class Limits:
    """A remark; there is nothing to set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    seen = signals[Events].of("log.clock_skew")
    yield Finding(
        title="the clocks of the nodes are not synchronized: times of different nodes cannot be compared",
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        evidence=tuple(Evidence("said", event.text[-160:], "", None, event.source) for event in seen[:3]),
        fix=("chrony or NTP on all nodes", "until then order failures within one node, or by a common collective"),
        verify="chronyc tracking: offsets below 10 ms on every node",
        why="a message cannot arrive before it was sent",
    )
