"""Warnings that healthy runs print as well: leave them alone.

## Meaning
Kernel below 5.5, "using GPU n to perform barrier" on the rank's own GPU, connections refused before the peer listens:
each of them is also in the log of runs that work.

## Impact
None; people spend days on them.

## Diagnosis
Nothing that stopped or slowed the job is near them in time.

## Mitigation
Look at the findings above.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD980",
    root_cause="RC-80",
    needs=(Events,),
    capture="the same lines in the log of a run that worked",
    symptom="people fix a warning, and the hang stays",
    evidence="the line is in healthy runs too, and no failure follows it",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has(*_WORDS),
)
_WORDS: Mapping[str, str] = {
    "log.kernel_warning": "kernel below 5.5: a general recommendation of accelerate",
    "c10d.barrier_device_warning": "the barrier guesses its device: harmless where the GPU is the rank's own",
    "store.connect_retry": "a connection was tried again: the other side was not listening yet",
}


@dataclass(frozen=True)
class Limits:
    """Remarks have none."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    found = [(kind, events.of(kind)) for kind in _WORDS if events.has(kind)]
    if events.has("store.connect_timeout"):
        found = [(kind, seen) for kind, seen in found if kind != "store.connect_retry"]
    if not found:
        return
    yield Finding(
        title=f"{_kinds(len(found))} of warning that working runs print too: {_WORDS[found[0][0]]}",
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        evidence=tuple(Evidence(_WORDS[kind], len(seen), "lines", None, seen[0].source) for kind, seen in found),
        fix=("none: look at what failed first",),
        verify="the same lines stand in the log of a run that worked",
        why="none of these lines stops a job by itself",
    )


def _kinds(count: int) -> str:
    return "one kind" if count == 1 else f"{count} kinds"
