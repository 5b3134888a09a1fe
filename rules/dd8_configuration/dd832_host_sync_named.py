"""torch's sync debug mode names calls in the loop that wait for the device.

## Meaning
With `torch.cuda.set_sync_debug_mode("warn")` each call that makes the host wait for the device is reported with its
line. Each of them empties the queue of launched work.

## Impact
The device pauses after each such call.

## Diagnosis
The warnings, by line.

## Mitigation
Keep the values on the device, read them every N steps, or copy them asynchronously.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD832",
    root_cause="RC-55",
    needs=(Events,),
    capture='one step with torch.cuda.set_sync_debug_mode("warn"); a trace shows what each call costs',
    symptom="the device pauses at the same place of every step",
    evidence="warnings of synchronising operations by line",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("trainer.host_sync"),
    references=("https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html",),
)


@dataclass(frozen=True)
class Limits:
    calls: int = 2
    """A single one may be the read of the loss at the end of a step."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = signals[Events].of("trainer.host_sync")
    places = Counter(event.word("where") for event in found)
    if len(found) < limits.calls:
        return
    where, count = places.most_common(1)[0]
    yield Finding(
        title=f"{len(places)} lines wait for the device, most often {where} ({count} times)",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where=where),
        evidence=tuple(
            Evidence(place, number, "warnings", limits.calls, found[0].source)
            for place, number in places.most_common(8)
        ),
        fix=(
            "keep loss.detach() on the device and call .item() every N steps; torch.where instead of if on a tensor",
            "copies with non_blocking=True between pinned memory and the device",
        ),
        verify="the warnings are gone, and a trace shows no idle time after blocking calls (DD202)",
        why="torch itself reports the wait",
        doubt="what each costs is not in the warnings",
    )
