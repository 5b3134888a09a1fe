"""Shared by the skew rules: who arrives late, as evidence; the rules differ in why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from ddiag.model.signals import HostLoad, JobFacts, LateRanks, Signals, StepBudget
from ddiag.rulekit.cost import severity_for, step_cost
from ddiag.rulekit.finding import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Severity
from ddiag.rulekit.hidden_waiting import costs_nothing
from ddiag.rulekit.quality import doubts
from ddiag.rulekit.rule import View


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
        Evidence(
            "waiting it causes",
            round(float(row["blame_share"]), 3),
            "of all waiting",
            None,
            "in calls that it comes to last",
        ),
        Evidence("waiting it causes", round(float(row["blame_ms"]), 3), "rank-ms", None, "summed over the other ranks"),
        Evidence("waiting", round(late.wait_share, 4), "of step", warning, "mean over ranks"),
    ]
    if row["p_value"] is not None:
        rows.append(
            Evidence("chance of this by luck", float(f"{row['p_value']:.2g}"), "", None, "binomial against 1/n")
        )
    return tuple(rows)


def difference(row: dict[str, Any], column: str, label: str) -> Evidence | None:
    """Evidence of how this rank differs from the median of its peers; None when unknown."""
    value = row.get(column)
    if value is None:
        return None
    if column == "kernel_slowdown":
        return Evidence(label, round(float(value), 3), "x", None, "same kernels, against the peers' median")
    return Evidence(label, round(float(value), 3), "ms/step", None, "more than the median of its peers")


@dataclass(frozen=True)
class LateLimits:
    """Limits every late-rank rule shares."""

    wait_share: float = 0.04
    """Waiting this rank causes / step for a finding (jitter between healthy ranks stays below)."""
    critical_share: float = 0.25
    """From here the rank is the first thing to fix."""
    contended_runnable: float = 1.2
    """Threads that want to run per CPU from which ranks that compute on CPUs may be late for want of one …"""
    contended_waiting: float = 0.2
    """… or the part of the time in which somebody waited for a CPU."""
    own_work: float = 0.5
    """Part of a rank's longer computing that must show as CPU time of its own where CPUs are contended …"""
    own_cpu: float = 0.25
    """… or, stretched by as much as its peers' is, when it is this much more than the peers' CPU time."""


ALONE = (
    "`ddiag run` on hosts that nobody else uses, with a CPU for every busy thread of the job (OMP_NUM_THREADS, "
    "num_workers, --numa-binding)"
)
MEASURED = "`ddiag run` around the launch command: it samples the CPUs of each host"
UNMEASURED = "whether CPUs had to be shared with others was not measured"


@dataclass(frozen=True)
class LateStory:
    """What one late-rank rule adds to the common evidence."""

    cause: str
    """Value of ``LateRanks.table['cause']`` the rule is about."""
    because: str
    """Continues 'rank 3 arrives last …'."""
    compare: tuple[tuple[str, str], ...]
    """(column of LateRanks.table, label): this rank against its peers."""
    fix: tuple[str, ...]
    verify: str
    why: str
    doubt: str
    like_starving: bool = False
    """A rank that waits for a CPU gives the same picture; the rule has :class:`HostLoad` among its signals."""


def several_ranks(signals: Signals) -> bool:
    """A rank can be late only among others."""
    facts = signals.get(JobFacts)
    return facts is not None and len(facts.ranks) > 1


def contended(facts: JobFacts, load: HostLoad | None, *, runnable: float, waiting: float) -> str:
    """How a job that computes on CPUs has to share them, in words; empty where it does not or nobody knows."""
    if load is None or facts.device_kind != "cpu":
        return ""
    worst = load.table.sort("runnable_per_cpu", descending=True).row(0, named=True)
    if worst["runnable_per_cpu"] < runnable and (worst["waiting_share"] or 0.0) < waiting:
        return ""
    waited = (
        "" if worst["waiting_share"] is None else f", somebody waits for one {worst['waiting_share']:.0%} of the time"
    )
    return f"{worst['runnable_per_cpu']:.1f} threads want to run per CPU{waited}"


def unmeasured(facts: JobFacts, load: HostLoad | None) -> bool:
    """Whether the job computes on CPUs, and nobody knows whether it had to share them."""
    return load is None and facts.device_kind == "cpu"


def late_findings(signals: View, limits: LateLimits, story: LateStory) -> Iterator[Finding | Abstain]:
    """The finding that one rank is late for the story's reason, if one is."""
    facts, budget, late = signals[JobFacts], signals[StepBudget], signals[LateRanks]
    found = late_rank(facts, budget, late, warning=limits.wait_share, critical=limits.critical_share)
    if found is None or found.cause != story.cause or costs_nothing(budget, (found.rank,), found.ms_per_step):
        return
    load = signals.get(HostLoad) if story.like_starving else None
    abstains = _starving(facts, budget, load, found, limits)
    if story.like_starving and unmeasured(facts, load):
        abstains = Abstain(f"rank {found.rank} arrives last, but {UNMEASURED}", MEASURED)
    if abstains:
        yield abstains
        return
    own = (difference(found.row, column, label) for column, label in story.compare)
    yield Finding(
        title=f"rank {found.rank} arrives last {story.because}; the others wait "
        f"{found.ms_per_step:.1f} ms per step ({found.share:.0%})",
        severity=found.severity,
        confidence=found.confidence,
        culprits=found.culprits,
        victims=found.victims,
        evidence=(*found.evidence, *(row for row in own if row is not None)),
        fix=story.fix,
        verify=story.verify,
        cost=found.cost,
        why=story.why,
        doubt=doubts(facts, *((late.note,) if late.note else ()), story.doubt),
    )


def _starving(
    facts: JobFacts, budget: StepBudget, load: HostLoad | None, found: LateRank, limits: LateLimits
) -> Abstain | None:
    """What is said of a rank that may be late for want of a CPU rather than by its own work."""
    crowd = contended(facts, load, runnable=limits.contended_runnable, waiting=limits.contended_waiting)
    if not crowd or load is None:
        return None
    peers = sorted(ms for rank, ms in load.cpu_ms.items() if rank != found.rank)
    if found.rank not in load.cpu_ms or not peers:
        return Abstain(f"rank {found.rank} arrives last, but its CPU time is not known, and {crowd}", ALONE)
    usual_ms = peers[len(peers) // 2]
    more_ms = load.cpu_ms[found.rank] - usual_ms
    longer_ms = max(float(found.row["compute_ms"] or 0.0), 0.0) or found.ms_per_step
    stretched = 1.0
    if usual_ms > 0 and more_ms >= limits.own_cpu * usual_ms:
        stretched = max(_peers_compute_ms(budget, found.rank) / usual_ms, 1.0)
    if more_ms * stretched >= limits.own_work * longer_ms:
        return None
    return Abstain(
        f"rank {found.rank} arrives last, but uses only {max(more_ms, 0.0):.1f} ms more CPU time per step for "
        f"{longer_ms:.1f} ms more, and {crowd}",
        ALONE,
    )


def _peers_compute_ms(budget: StepBudget, rank: int) -> float:
    """Time in which the other ranks compute, per step; where CPUs are contended more than the CPU time it takes."""
    others = budget.table.filter(pl.col("steady") & (pl.col("rank") != rank))
    value = others["compute_ms"].median() if others.height else None
    return float(value) if isinstance(value, (int, float)) else 0.0
