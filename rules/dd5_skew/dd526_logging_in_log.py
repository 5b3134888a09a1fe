"""Writing logs and metrics takes a good part of the step, usually on rank 0 alone.

## Meaning
Sending metrics to a service, writing summaries or printing to a network disk happens between steps, on one rank, while
all others wait for it in the next collective.

## Impact
Rank 0 is late at every log interval.

## Diagnosis
The script's own timer around its logging.

## Mitigation
Log less often, in a thread, or offline.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Metrics
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, View, severity_for
from ddiag.rulekit.values import median_of

RULE = Rule(
    id="DD526",
    root_cause="RC-67",
    needs=(Metrics,),
    capture="a log with log_time and step_time of each rank",
    symptom="rank 0 is periodically slow",
    evidence="log_time / step_time",
    applies=lambda signals: (m := signals.get(Metrics)) is not None and not m.series("log_ms").is_empty(),
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.05
    critical_share: float = 0.3
    values: int = 3


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    metrics = signals[Metrics]
    rows = metrics.series("log_ms").filter(metrics.series("log_ms")["value"] > 0)
    log_ms, step_ms = statistics.median(rows["value"].to_list() or [0.0]), median_of(metrics, "step_ms", skip=1)
    if rows.height < limits.values or not log_ms or not step_ms or log_ms / step_ms < limits.share:
        return
    ranks = tuple(sorted({int(rank) for rank in rows["rank"].drop_nulls()}))
    share = min(log_ms / step_ms, 1.0)
    yield Finding(
        title=f"logging takes {log_ms:.0f} ms of a step of {step_ms:.0f} ms ({share:.0%})",
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share),
        confidence=Confidence.HIGH,
        culprits=Culprits(ranks=ranks if len(ranks) == 1 else (), where="logging"),
        evidence=(Evidence("log time", round(share, 3), "of step", limits.share, "median"),),
        fix=(
            "log every 50 steps; collect values on the device in between",
            "WANDB_MODE=offline or an asynchronous writer; no prints to network disks; no profiler left on",
        ),
        verify="50 steps without logging on that rank: the step time at log steps equals that of the others",
        cost=Cost(ms_per_step=log_ms, step_share=share),
        why="the script's own timer; the other ranks wait for this one in the next collective",
    )
