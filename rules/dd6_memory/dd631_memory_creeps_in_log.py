"""Memory grows from step to step: something keeps what it should let go.

## Meaning
At the same place of each step the same amount should be allocated. A list that collects losses with their graphs, a
cache without limit, groups created in the loop, or dataset objects copied by workers grow instead.

## Impact
Hours later the job runs out of memory, on the device or on the host.

## Diagnosis
Printed memory rises nearly every time, in a straight line.

## Mitigation
`loss.detach()` or `.item()` before keeping it; numpy arrays instead of Python lists in datasets; destroy groups.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ddiag.model.signals_incident import Metrics
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

SERIES = {
    "memory.allocated_gb": "allocated device memory",
    "memory.max_allocated_gb": "peak device memory",
    "memory.max_reserved_gb": "reserved device memory",
    "host.memory_used_gb": "host memory",
}

RULE = Rule(
    id="DD631",
    root_cause="RC-76",
    needs=(Metrics,),
    capture="a log that prints memory over 100 steps or more (DeepSpeed steps_per_print, torchtitan, see_memory_usage)",
    symptom="out of memory after hours, the same configuration starts well",
    evidence="allocated memory at the same place of the step rises linearly",
    applies=lambda signals: (m := signals.get(Metrics)) is not None and any(not m.series(s).is_empty() for s in SERIES),
)


@dataclass(frozen=True)
class Limits:
    points: int = 8
    """Printed values, the first (while caches fill) not counted."""
    growth: float = 0.05
    """Rise over the log / level at its beginning."""
    rising: float = 0.75
    """Part of the intervals in which it rises."""
    straight: float = 0.95
    """Correlation of value and number: a leak is a line, a warm-up bends."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    for name, words in SERIES.items():
        values = [value for value in signals[Metrics].series(name)["value"].to_list() if value is not None][1:]
        if len(values) < limits.points or values[0] <= 0:
            continue
        growth = values[-1] / values[0] - 1.0
        steps = [later - earlier for earlier, later in pairwise(values)]
        rising = sum(step > 0 for step in steps) / len(steps)
        straight = _correlation(values)
        if growth < limits.growth or rising < limits.rising or straight < limits.straight:
            continue
        yield Finding(
            title=f"{words} grows steadily: {values[0]:.3g} to {values[-1]:.3g} GB over {len(values)} printed values",
            severity=Severity.WARNING,
            confidence=Confidence.HIGH if len(values) >= 2 * limits.points else Confidence.MEDIUM,
            culprits=Culprits(),
            evidence=(
                Evidence("growth", round(growth, 3), "of the level", limits.growth, name),
                Evidence("intervals in which it rises", round(rising, 2), "of all", limits.rising, name),
                Evidence("straightness (correlation)", round(straight, 3), "", limits.straight, name),
            ),
            fix=_fixes(host=name.startswith("host")),
            verify="torch.cuda.memory_allocated() at the same line of each step is constant over 1000 steps; RSS "
            "of workers "
            "(ps -o rss,cmd) as well",
            why="it rises at nearly every interval and in a line, so it is kept, not fragmented",
            doubt="caches that fill (compile, autotuning, a growing vocabulary of shapes) look the same at first",
        )
        return


def _correlation(values: list[float]) -> float:
    numbers = list(map(float, range(len(values))))
    return statistics.correlation(numbers, values) if len(set(values)) > 1 else 0.0


def _fixes(*, host: bool) -> tuple[str, ...]:
    if host:
        return (
            "datasets: numpy or Arrow arrays instead of lists of Python objects (each touch copies a page in every "
            "worker); fewer workers, persistent_workers=False as a test",
            "py-spy / memray on one worker: who allocates",
        )
    return (
        "keep loss.detach() or loss.item(), never the loss with its graph; no tensors in lists that live on",
        "destroy_process_group(group) for groups created in the loop; no torch.compile of ever new shapes",
        "torch.cuda.memory._record_memory_history() and two snapshots 500 steps apart: the difference names the line",
    )
