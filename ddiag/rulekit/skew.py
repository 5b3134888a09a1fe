"""Shared by the skew rules: who arrives late, as evidence; the rules differ in why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from ddiag.model.signals import JobFacts, LateRanks, StepBudget
from ddiag.rulekit.cost import severity_for, step_cost
from ddiag.rulekit.finding import Confidence, Cost, Culprits, Evidence, Severity


@dataclass(frozen=True)
class LateRank:
    """The one rank that stands out, with what it costs the others."""

    rank: int
    row: dict[str, Any]
    """Its row of :attr:`LateRanks.table`."""
    share: float
    """Waiting it causes / step, mean over ranks."""
    ms_per_step: float
    severity: Severity
    confidence: Confidence
    culprits: Culprits
    victims: tuple[int, ...]
    cost: Cost
    evidence: tuple[Evidence, ...]

    @property
    def cause(self) -> str:
        return str(self.row["cause"])


def late_rank(
    facts: JobFacts, budget: StepBudget, late: LateRanks, *, warning: float, critical: float
) -> LateRank | None:
    """The persistent late rank if the waiting it causes reaches *warning* of the step, else None."""
    if late.persistent_rank is None or budget.step_ms <= 0:
        return None
    rank = late.persistent_rank
    row = late.table.filter(pl.col("rank") == rank).row(0, named=True)
    ms_per_step = late.wait_ms_per_step * float(row["blame_share"])
    share = ms_per_step / budget.step_ms
    if share < warning:
        return None
    host = facts.host_of.get(rank)
    return LateRank(
        rank=rank,
        row=row,
        share=share,
        ms_per_step=ms_per_step,
        severity=severity_for(share, warning=warning, critical=critical),
        confidence=_confidence(late, row, budget),
        culprits=Culprits(ranks=(rank,), hosts=(host,) if host else ()),
        victims=tuple(r for r in facts.ranks if r != rank),
        cost=step_cost(ms_per_step, budget, facts),
        evidence=_evidence(rank, row, late, warning),
    )


def _confidence(late: LateRanks, row: dict[str, Any], budget: StepBudget) -> Confidence:
    """High needs repetition: several steps and a rank that is last in most of them."""
    p_value = row["p_value"]
    repeated = budget.n_steps >= 3 and float(row["blame_share"]) >= 0.6
    if repeated and p_value is not None and p_value < 0.01:
        return Confidence.HIGH
    return Confidence.MEDIUM if float(row["blame_share"]) >= 0.5 else Confidence.LOW


def _evidence(rank: int, row: dict[str, Any], late: LateRanks, warning: float) -> tuple[Evidence, ...]:
    rows = [
        Evidence(
            "arrives last",
            f"{row['last_count']} of {row['collectives']}",
            "collectives",
            None,
            f"rank {rank}: shortest duration of the call",
        ),
        Evidence("waiting it causes", round(float(row["blame_share"]), 3), "of all waiting", None, "algorithm D2"),
        Evidence("waiting it causes", round(float(row["blame_ms"]), 3), "rank-ms", None, "summed over the other ranks"),
        Evidence("waiting", round(late.wait_share, 4), "of step", warning, "mean over ranks"),
    ]
    if row["p_value"] is not None:
        rows.append(Evidence("chance of this by luck", float(f"{row['p_value']:.2g}"), "", None, "binomial against 1/n"))
    return tuple(rows)


def difference(row: dict[str, Any], column: str, label: str) -> Evidence | None:
    """Evidence that this rank spends *column* ms per step more than the median of its peers; None when unknown."""
    value = row.get(column)
    return None if value is None else Evidence(label, round(float(value), 3), "ms/step", None, "above its peers' median")
