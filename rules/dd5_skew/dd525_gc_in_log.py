"""Python's garbage collector stops the training loop for a good part of a second, again and again.

## Meaning
A full (generation 2) collection walks every object; with big models and datasets that takes 0.1 to 1.5 s. Each rank
collects at another step, and all others wait.

## Impact
Random steps are long; the more ranks, the more often one of them collects.

## Diagnosis
The times that the trainer or gc.callbacks print.

## Mitigation
Collect on all ranks at the same step, young generations only; freeze what stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import ranks_of

RULE = Rule(
    id="DD525",
    root_cause="RC-49",
    needs=(Events,),
    capture="gc.callbacks with a timer on every rank, or torchtitan's [GC] lines",
    symptom="random ranks lag by 0.1 to 1.5 s; jitter grows with the number of ranks",
    evidence="printed times of collections",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("trainer.gc"),
)


@dataclass(frozen=True)
class Limits:
    pause_s: float = 0.2
    """A collection of the young generations takes some ms."""
    pauses: int = 2


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    every = signals[Events].of("trainer.gc")
    long = [event for event in every if (event.number("seconds") or 0.0) >= limits.pause_s]
    if len(long) < limits.pauses:
        return
    worst = max(long, key=lambda event: event.number("seconds") or 0.0)
    ranks = ranks_of(long)
    yield Finding(
        title=f"garbage collection stops the loop for up to {worst.number('seconds'):.2f} s ({len(long)} times in "
        f"the log)",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(where="gc"),
        evidence=(
            Evidence("longest collection", worst.number("seconds") or 0.0, "s", limits.pause_s, worst.source),
            Evidence("long collections", len(long), f"of {len(every)}", limits.pauses, ""),
            Evidence("on ranks", len(ranks), "", None, ""),
        ),
        fix=(
            "gc.disable() and gc.collect(1) every 50 steps on all ranks at the same step (torchtitan gc_freq, Megatron "
            "--manual-gc --manual-gc-interval 50)",
            "gc.freeze() after the model and the data are built: what stays is not walked again",
        ),
        verify="200 steps with gc.disable(): the 99th percentile of the step time falls to the median",
        why="nothing is launched while the collector walks, and the other ranks wait in the next collective",
    )
