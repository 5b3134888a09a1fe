"""Collectives for logging or metrics are not called by all ranks alike.

## Meaning
log_dict(sync_dist=True), gather_for_metrics and object broadcasts are collectives. Keys or calls that depend on the
rank leave some ranks out.

## Impact
The job hangs at a logging step.

## Diagnosis
The calls that differ are small (flags, a few numbers), or the line of code is one of logging.

## Mitigation
Log the same keys on every rank, or without synchronisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import METRICS, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, who

RULE = Rule(
    id="DD923",
    root_cause="RC-23",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="deadlock in log_dict(sync_dist=True) or gather_for_metrics",
    evidence="small broadcast or all-gather whose arguments differ between ranks",
    applies=stalls_for(METRICS),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} logs something else: {stall.mismatch or place(stall)}",
        (
            "the same keys in the same order on every rank; rank_zero_only=True without sync_dist",
            "synchronise once at the end of the epoch",
            "gather_for_metrics on all ranks, never under if is_main_process",
        ),
        "print sorted(metrics) on every rank: equal; TORCH_DISTRIBUTED_DEBUG=DETAIL is quiet",
    )
