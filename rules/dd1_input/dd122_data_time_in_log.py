"""The log's own timers show that the loop waits for its data.

## Meaning
Many training scripts print how long they waited for the next batch. When that is a good part of the step, the loader
cannot keep up.

## Impact
The devices idle for that time in each step.

## Diagnosis
`data_time` against `step_time` over the printed steps.

## Mitigation
More loader workers, prefetching, cheaper preprocessing, faster storage.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Metrics
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, View, severity_for
from ddiag.rulekit.values import median_of

RULE = Rule(
    id="DD122",
    root_cause="RC-43",
    needs=(Metrics,),
    capture="a log with data_time and step_time, or record with ddiag run",
    symptom="GPU utilisation goes up and down between 0 and 100 %",
    evidence="data_time / step_time",
    applies=lambda signals: (m := signals.get(Metrics)) is not None and not m.series("data_ms").is_empty(),
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.2
    critical_share: float = 0.5
    values: int = 3
    one_rank_ratio: float = 3.0
    """Wait of one rank / median of the others, from which it is that rank's loader."""
    ranks: int = 3


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    metrics = signals[Metrics]
    if metrics.series("data_ms").height < limits.values:
        return
    data_ms, step_ms = median_of(metrics, "data_ms", skip=1), median_of(metrics, "step_ms", skip=1)
    rank, worst_ms = _one_rank(metrics, limits)
    wait_ms = worst_ms if rank is not None else data_ms
    if wait_ms is None or not step_ms:
        return
    share = min(wait_ms / step_ms, 1.0)
    if share < limits.share:
        return
    yield Finding(
        title=f"the loop waits {wait_ms:.0f} ms for data in a step of {step_ms:.0f} ms ({share:.0%})",
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share),
        confidence=Confidence.HIGH,
        culprits=Culprits(ranks=() if rank is None else (rank,), where="data loading"),
        evidence=(
            Evidence("data time", round(share, 3), "of step", limits.share, "median"),
            Evidence("data time", round(wait_ms, 1), "ms", None, "median"),
        ),
        fix=(
            "DataLoader(num_workers up to cores per rank, prefetch_factor=4, persistent_workers=True, pin_memory=True)",
            "tokenise and decode beforehand; webdataset or Arrow shards on local NVMe; torch.set_num_threads(1) in "
            "workers",
        ),
        verify="run 50 steps on one cached batch: what gets faster was the loader",
        cost=Cost(ms_per_step=wait_ms, step_share=share),
        why="the script's own timers around its loader",
    )


def _one_rank(metrics: Metrics, limits: Limits) -> tuple[int | None, float]:
    """(rank, its wait in ms) when one rank waits far longer than the others."""
    rows = metrics.series("data_ms").drop_nulls(["rank", "value"])
    waits = {int(rank): statistics.median(part["value"].to_list()) for (rank,), part in rows.group_by("rank")}
    if len(waits) < limits.ranks:
        return None, 0.0
    rank = max(waits, key=lambda one: waits[one])
    others = statistics.median(value for one, value in waits.items() if one != rank)
    return (rank, waits[rank]) if waits[rank] >= limits.one_rank_ratio * max(others, 1e-9) else (None, 0.0)
