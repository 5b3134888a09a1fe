"""Nearly every step is clipped: the limit of the gradient norm, not the gradient, sets the step.

## Meaning
Clipping is meant for outliers. When the printed norm is above the limit in nearly all steps, the limit acts as a change
of the learning rate. No value of max_norm is right for a precision as such; the observed share is what counts.

## Impact
Training goes more slowly than its learning rate says; it is no fault of speed.

## Diagnosis
Printed gradient norms against the configured limit.

## Mitigation
A limit near the usual norm, or a lower learning rate with a higher limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Metrics, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import as_number, setting

RULE = Rule(
    id="DD1121",
    root_cause="RC-62",
    needs=(Metrics, Settings),
    capture="a log with the gradient norm of each step, and the configuration",
    symptom="loss falls slowly although the learning rate is high",
    evidence="share of printed steps whose gradient norm is above the limit",
    applies=lambda signals: (
        signals.has(Settings) and (m := signals.get(Metrics)) is not None and not m.series("grad_norm").is_empty()
    ),
    explained_by=("DD1120",),
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.9
    values: int = 20


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings = signals[Settings]
    said = setting(settings, "ds_config", "gradient_clipping") or setting(settings, "trainer", "max_grad_norm")
    said = said or setting(settings, "megatron", "clip_grad")
    limit = as_number(said.value) if said is not None else None
    norms = [value for value in signals[Metrics].series("grad_norm")["value"].drop_nulls() if math.isfinite(value)]
    if said is None or not limit or len(norms) < limits.values:
        return
    share = sum(value > limit for value in norms) / len(norms)
    if share < limits.share:
        return
    yield Finding(
        title=f"{share:.0%} of the printed steps are clipped (limit {limit:g})",
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        culprits=Culprits(where=said.key),
        evidence=(Evidence("clipped steps", round(share, 3), "of printed", limits.share, said.source),),
        fix=(
            "set the limit near the usual norm (its 90th percentile), or lower the learning rate and raise the limit",
        ),
        verify="fewer than a tenth of the steps clipped, and the loss falls as before or faster",
        why="the norm is above the limit nearly always",
    )
