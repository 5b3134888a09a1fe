"""FSDP's prefetch or rate limiter is switched off.

## Meaning
`backward_prefetch` issues the all-gather of the next unit before the current one's gradients are reduced
(BACKWARD_PRE); NO_PREFETCH waits until it is needed. `limit_all_gathers=False` lets a fast host queue gathers far
ahead.

## Impact
NO_PREFETCH: backward waits for every gather. No limiter: several units' parameters are alive at once, memory spikes and
cudaMalloc retries.

## Diagnosis
The configuration's values.

## Mitigation
BACKWARD_PRE, `limit_all_gathers=True`; `forward_prefetch=True` where the host is the bottleneck and the graph static.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import as_flag, as_number, setting

RULE = Rule(
    id="DD452",
    root_cause="RC-54",
    needs=(Settings,),
    capture="the accelerate or trainer configuration; a trace shows whether gathers are exposed (DD409)",
    symptom="FSDP backward waits for all-gathers, or memory spikes with a fast host",
    evidence="fsdp_backward_prefetch NO_PREFETCH; limit_all_gathers false",
    applies=lambda signals: (s := signals.get(Settings)) is not None and bool(s.of("fsdp")),
    explained_by=("DD451",),
)
OFF = ("NO_PREFETCH", "NONE", "NULL", "")


@dataclass(frozen=True)
class Limits:
    fsdp2_version: int = 2
    """From here prefetch is implicit, and these options have no effect."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings = signals[Settings]
    version = setting(settings, "fsdp", "version")
    if version is not None and (as_number(version.value) or 1) >= limits.fsdp2_version:
        return
    prefetch = setting(settings, "fsdp", "backward_prefetch", "backward_prefetch_policy")
    limiter = setting(settings, "fsdp", "limit_all_gathers")
    if prefetch is not None and prefetch.value.upper() in OFF:
        yield _finding(
            f"backward_prefetch is {prefetch.value}: in backward every all-gather is waited for",
            Evidence("backward_prefetch", prefetch.value, "", "BACKWARD_PRE", prefetch.source),
            "fsdp_backward_prefetch: BACKWARD_PRE (one more unit in memory); BACKWARD_POST where memory is short",
        )
    if limiter is not None and as_flag(limiter.value) is False:
        yield _finding(
            "limit_all_gathers is off: the host may gather many units ahead, and memory follows",
            Evidence("limit_all_gathers", limiter.value, "", "true", limiter.source),
            "limit_all_gathers=True (the default): at most two gathers are in flight",
        )


def _finding(title: str, evidence: Evidence, fix: str) -> Finding:
    return Finding(
        title=title,
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where=evidence.label),
        evidence=(evidence,),
        fix=(
            fix,
            "forward_prefetch=True helps only where the host issues too late and the order of modules never changes",
        ),
        verify="toggle the one option and compare the exposed all-gather time of two traces (ddiag analyze, DD409)",
        doubt="what it costs is not in a configuration; a trace of three steps shows it",
    )
