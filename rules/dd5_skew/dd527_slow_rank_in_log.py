"""One rank's own compute takes longer than the others', step after step.

## Meaning
The log prints the compute time of each rank (forward and backward without waiting). The same rank is always the
slowest, so it is its device, host or part of the model, not the data of a step.

## Impact
All ranks wait for it in each collective.

## Diagnosis
Compute time per rank and step against the median of the others; Megatron's timers of all ranks.

## Mitigation
Look at that rank's device and host; exchange the node.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events, Metrics
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD527",
    root_cause="RC-44",
    needs=(),
    optional=(Events, Metrics),
    capture="log forward + backward time per rank and step, or Megatron --timing-log-option all",
    symptom="all GPUs are busy, the job is slow",
    evidence="compute time of one rank above the others' median in most steps",
    applies=lambda signals: (
        ((e := signals.get(Events)) is not None and e.has("megatron.timer_ranks"))
        or ((m := signals.get(Metrics)) is not None and not m.series("compute_ms").is_empty())
    ),
    explained_by=("DD524", "DD522"),
)
COMPUTE_TIMERS = ("forward-compute", "backward-compute", "forward-backward-compute")


@dataclass(frozen=True)
class Limits:
    ratio: float = 1.12
    """Compute / median of all ranks."""
    steps_share: float = 0.7
    """Of the steps in which it is the slowest."""
    ranks: int = 3
    steps: int = 3


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    steps = [step for step in _steps(signals.get(Events), signals.get(Metrics)) if len(step) >= limits.ranks]
    if not steps:
        return
    slowest = Counter(max(step, key=lambda rank: step[rank]) for step in steps)
    rank, count = slowest.most_common(1)[0]
    ratio = statistics.median(step[rank] / statistics.median(step.values()) for step in steps if rank in step)
    second = statistics.median(
        max((value for other, value in step.items() if other != rank), default=0.0) / statistics.median(step.values())
        for step in steps
    )
    if ratio < limits.ratio or second >= limits.ratio or count < limits.steps_share * len(steps):
        return
    lost = statistics.median(step[rank] - statistics.median(step.values()) for step in steps if rank in step)
    yield Finding(
        title=f"rank {rank} computes {ratio:.2f} times as long as the median rank",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if len(steps) >= limits.steps else Confidence.MEDIUM,
        culprits=Culprits(ranks=(rank,)),
        evidence=(
            Evidence("compute / median of ranks", round(ratio, 3), "", limits.ratio, "median over steps"),
            Evidence("the next slowest / median", round(second, 3), "", limits.ratio, ""),
            Evidence("steps in which it is the slowest", count, f"of {len(steps)}", None, ""),
        ),
        fix=(
            "on its node: nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE; other processes; PCIe width; CPU affinity",
            "exchange the node: if the slowness moves with it, drain it",
        ),
        verify="the same log on another node: all ranks within 5 %",
        cost=Cost(ms_per_step=lost),
        why="it is its own compute, without waiting, and the same rank each time",
        doubt="" if len(steps) >= limits.steps else "few steps are in the log",
    )


def _steps(events: Events | None, metrics: Metrics | None) -> list[dict[int, float]]:
    """Compute time of each rank (ms), one mapping per step."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    if metrics is not None:
        for row in metrics.series("compute_ms").iter_rows(named=True):
            if row["rank"] is not None and row["step"] is not None:
                found[row["step"]][row["rank"]] = float(row["value"])
    steps = list(found.values())
    for event in events.of("megatron.timer_ranks") if events is not None else ():
        times = event.get("ms")
        if event.word("timer") in COMPUTE_TIMERS and isinstance(times, dict):
            steps.append({int(rank): float(value) for rank, value in times.items() if isinstance(value, (int, float))})
    return steps
