"""A few experts of the mixture get most of the tokens.

## Meaning
The router sends tokens to experts; the ranks that hold favoured experts compute and store more, and all others wait for
them in the all-to-all.

## Impact
Steps get slower as training goes on; a rank with favoured experts may run out of memory.

## Diagnosis
Tokens per expert: largest over mean.

## Mitigation
A balancing loss or bias, a capacity factor, another placement of experts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD521",
    root_cause="RC-58",
    needs=(Events,),
    capture="log tokens_per_expert of each MoE layer every 100 steps",
    symptom="the step gets slower over training; one expert-parallel rank runs out of memory",
    evidence="tokens per expert, max/mean above 2",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("moe.tokens_per_expert"),
)


@dataclass(frozen=True)
class Limits:
    imbalance: float = 2.0
    """Largest / mean tokens of an expert."""
    critical_imbalance: float = 4.0
    experts: int = 2


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    rows = [(event, ratio) for event in signals[Events].of("moe.tokens_per_expert") if (ratio := _ratio(event, limits))]
    if not rows:
        return
    recent = rows[-max(len(rows) // 2, 1) :]
    typical = statistics.median(ratio for _, ratio in recent)
    if typical < limits.imbalance:
        return
    worst, ratio = max(recent, key=lambda row: row[1])
    expert = _heaviest(worst)
    layer = worst.integer("layer")
    place = f" of layer {layer}" if layer is not None else ""
    yield Finding(
        title=f"expert {expert}{place} gets {ratio:.1f} times the mean number of tokens",
        severity=Severity.CRITICAL if typical >= limits.critical_imbalance else Severity.WARNING,
        confidence=Confidence.HIGH if len(rows) > 1 else Confidence.MEDIUM,
        culprits=Culprits(modules=(f"expert {expert}{place}",)),
        evidence=(
            Evidence("largest / mean tokens of an expert", round(typical, 2), "", limits.imbalance, "median"),
            Evidence("worst", round(ratio, 2), "", limits.imbalance, worst.source),
            Evidence("printed layers or steps", len(rows), "", None, ""),
        ),
        fix=(
            "balance the router: --moe-aux-loss-coeff 1e-2, bias-based balancing "
            "(--moe-router-enable-expert-bias), z-loss",
            "--moe-expert-capacity-factor 1.0-1.25 with dropping or padding bounds time and memory",
            "place the heavy experts on different ranks (expert placement, replication)",
        ),
        verify="largest / mean below 1.5; as a test --moe-router-force-load-balancing shows the speed without "
        "imbalance",
        why="grouped GEMMs and the all-to-all last as long as the fullest expert's rank",
        doubt="" if len(rows) > 1 else "one printed line may be a moment of the start",
    )


def _tokens(event: Event) -> list[float]:
    found = event.get("tokens")
    return [float(value) for value in found if isinstance(value, (int, float))] if isinstance(found, list) else []


def _ratio(event: Event, limits: Limits) -> float | None:
    tokens = _tokens(event)
    total = sum(tokens)
    return max(tokens) * len(tokens) / total if len(tokens) >= limits.experts and total > 0 else None


def _heaviest(event: Event) -> int:
    tokens = _tokens(event)
    return tokens.index(max(tokens))
