"""xpu_timer's kernel times name a rank whose matrix products take longer than the others'.

## Meaning
xpu_timer measures kernels on every rank, by class of size. The same products take the same time on healthy devices.

## Impact
All ranks wait for the slow one.

## Diagnosis
Average latency of the largest class of products, by rank. Its hang flag says that ranks stand still, not for whom.

## Mitigation
Look at that rank's clocks, temperature and other processes; exchange the node.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events, Metrics
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD528",
    root_cause="RC-44",
    needs=(),
    optional=(Events, Metrics),
    capture="the metrics of all ranks' xpu_timer, twice, a minute apart; for a hang Flight Recorder dumps of all ranks",
    symptom="the job is slow or stands still",
    evidence="latency of the same class of products by rank",
    applies=lambda signals: (
        ((e := signals.get(Events)) is not None and e.has("xpu_timer.hang"))
        or ((m := signals.get(Metrics)) is not None and bool(m.table["name"].str.starts_with("xpu_timer.").any()))
    ),
)


@dataclass(frozen=True)
class Limits:
    ratio: float = 1.2
    """Latency / median of ranks in a class; classes hold products of several sizes."""
    classes_share: float = 0.6
    """Of the classes in which the rank is that slow."""
    ranks: int = 3


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, metrics = signals.get(Events), signals.get(Metrics)
    flags = events.of("xpu_timer.hang") if events is not None else ()
    if flags and all(event.get("hang") for event in flags):
        yield Abstain(
            f"xpu_timer says that all {len(flags)} ranks stand still, but not which of them the others wait for",
            "Flight Recorder dumps (kill -USR2, or TORCH_NCCL_DEBUG_INFO_PIPE_FILE) and py-spy dumps of all ranks",
        )
        return
    classes = [by_rank for by_rank in _classes(metrics).values() if len(by_rank) >= limits.ranks]
    slow: dict[int, list[float]] = defaultdict(list)
    for by_rank in classes:
        middle = statistics.median(by_rank.values())
        for rank, value in by_rank.items():
            if middle > 0 and value / middle >= limits.ratio:
                slow[rank].append(value / middle)
    guilty = [rank for rank, ratios in slow.items() if len(ratios) >= max(limits.classes_share * len(classes), 1)]
    if len(guilty) != 1 or not classes:
        return
    ratio = statistics.median(slow[guilty[0]])
    yield Finding(
        title=f"matrix products on rank {guilty[0]} take {ratio:.2f} times as long as on the median rank",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if len(classes) > 1 else Confidence.MEDIUM,
        culprits=Culprits(ranks=(guilty[0],)),
        evidence=(
            Evidence("latency / median of ranks", round(ratio, 3), "", limits.ratio, "xpu_timer"),
            Evidence("classes of size in which it is slow", len(slow[guilty[0]]), f"of {len(classes)}", None, ""),
        ),
        fix=("nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE on its node; exchange the node and compare",),
        verify="the same metrics afterwards: all ranks within 10 %",
        why="equal kernels of equal size should take equal time",
        doubt="ranks with another part of the model multiply other sizes",
    )


def _classes(metrics: Metrics | None) -> dict[str, dict[int, float]]:
    """Average latency (µs) by class of size and rank."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    if metrics is not None:
        for row in metrics.table.iter_rows(named=True):
            if row["name"].startswith("xpu_timer.mm.") and row["rank"] is not None:
                found[row["name"]][row["rank"]] = float(row["value"])
    return found
