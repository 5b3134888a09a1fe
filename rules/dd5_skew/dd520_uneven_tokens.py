"""Ranks get unequal amounts of tokens: another rank is slow in each step, and the others wait for it.

## Meaning
Sequences of different length give each rank another amount of work per step (attention grows with the square of the
length). Every step lasts as long as its largest batch.

## Impact
All ranks but one wait in each step; the loss is maximum over mean.

## Diagnosis
Tokens (or sums of squared lengths) per rank differ, the largest moves from rank to rank, and step or compute time goes
with them.

## Mitigation
Pack or balance by the sum of squared lengths over all ranks of a step.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events, Metrics
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

SOURCES = ("tokens", "tokens_squared", "seqlen.max")
Steps = list[dict[int, float]]
"""Work of each rank, one mapping per step."""

RULE = Rule(
    id="DD520",
    root_cause="RC-57",
    needs=(),
    optional=(Events, Metrics),
    capture="log the number of tokens and the forward + backward time of each rank and step (20 steps)",
    symptom="the step time varies by a factor of two, a different rank is slow each time",
    evidence="tokens per rank: max/mean high, the maximum rotates, correlation with the time",
    applies=lambda signals: (
        ((e := signals.get(Events)) is not None and e.has("trainer.tokens_by_rank"))
        or ((m := signals.get(Metrics)) is not None and any(not m.series(name).is_empty() for name in SOURCES))
    ),
)


@dataclass(frozen=True)
class Limits:
    imbalance: float = 1.3
    """Largest / mean work of a step, median over steps; balanced sampling stays below 1.1."""
    steps: int = 3
    rotating_share: float = 0.7
    """The most frequent heaviest rank must not lead more steps than this, or it is one rank's data."""
    correlation: float = 0.8
    """Of work and time, from which it is certain."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, metrics = signals.get(Events), signals.get(Metrics)
    steps = _steps(events, metrics)
    imbalance = _imbalance(steps) if len(steps) >= limits.steps else _summarised(metrics)
    if imbalance is None or imbalance < limits.imbalance:
        return
    heaviest = [max(step, key=lambda rank: step[rank]) for step in steps]
    constant = max((heaviest.count(rank) for rank in set(heaviest)), default=0) / max(len(heaviest), 1)
    link = _correlation(steps, metrics)
    one_rank = constant > limits.rotating_share and len(set(heaviest)) == 1
    yield Finding(
        title=f"the fullest rank has {imbalance:.2g} times the mean work of a step"
        + (", and it is another rank each time" if len(set(heaviest)) > 1 else ""),
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if link is not None and link >= limits.correlation else Confidence.MEDIUM,
        culprits=Culprits(ranks=(heaviest[0],) if one_rank and len(heaviest) >= limits.steps else ()),
        evidence=(
            Evidence("largest / mean work of a step", round(imbalance, 2), "", limits.imbalance, "median over steps"),
            *((Evidence("steps", len(steps), "", limits.steps, ""),) if steps else ()),
            *(
                (Evidence("correlation of work and time", round(link, 2), "", limits.correlation, ""),)
                if link is not None
                else ()
            ),
        ),
        fix=(
            "pack sequences so that the sum of squared lengths is equal over ranks (balanced sampler, "
            "--balance-by-flops, "
            "verl use_dynamic_bsz and balance_batch)",
            "group_by_length over the *global* batch; cap max_length; context parallelism for the few very long ones",
        ),
        verify="largest / mean below 1.1 in the same log; the step time's spread shrinks with it",
        why="a synchronous step ends with its fullest rank",
        doubt="" if link is not None else "times per rank are not in the log, so what it costs is not known",
    )


def _steps(events: Events | None, metrics: Metrics | None) -> Steps:
    listed = [e.get("tokens") for e in events.of("trainer.tokens_by_rank")] if events is not None else []
    steps = [
        {rank: float(value) for rank, value in enumerate(one) if isinstance(value, (int, float))}
        for one in listed
        if isinstance(one, list)
    ]
    if not steps and metrics is not None:
        steps = next((found for name in SOURCES[1::-1] if (found := list(_by_step(metrics, name).values()))), [])
    return [step for step in steps if len(step) > 1 and sum(step.values()) > 0]


def _by_step(metrics: Metrics, name: str) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for row in metrics.series(name).iter_rows(named=True):
        if row["rank"] is not None and row["step"] is not None:
            found[row["step"]][row["rank"]] = float(row["value"])
    return {step: of_ranks for step, of_ranks in found.items() if len(of_ranks) > 1}


def _imbalance(steps: Steps) -> float:
    return statistics.median(max(step.values()) * len(step) / sum(step.values()) for step in steps)


def _summarised(metrics: Metrics | None) -> float | None:
    """Trainers that print only the largest and the mean of each step."""
    if metrics is None:
        return None
    largest, mean = (metrics.series(f"seqlen.{name}")["value"].to_list() for name in ("max", "mean"))
    ratios = [most / middle for most, middle in zip(largest, mean, strict=False) if middle]
    return statistics.median(ratios) if ratios else None


def _correlation(steps: Steps, metrics: Metrics | None) -> float | None:
    """Of work and compute (or step) time over ranks and steps; None where no time is printed per rank."""
    if metrics is None:
        return None
    work = next((found for name in SOURCES[1::-1] if (found := _by_step(metrics, name))), {})
    for name in ("compute_ms", "step_ms"):
        times = _by_step(metrics, name)
        pairs = [(work[s][r], times[s][r]) for s in work if s in times for r in work[s] if r in times[s]]
        if len(pairs) >= 6 and len({a for a, _ in pairs}) > 1 and len({b for _, b in pairs}) > 1:
            return statistics.correlation([a for a, _ in pairs], [b for _, b in pairs])
    return None
