"""The same several ranks arrive late together in every step, and all others wait for them.

## Meaning
It is no single straggler and no chance: a fixed set of ranks is late each step. What they have in common is the cause:
a host, a switch, a kind of device, a larger share of the model or of the data.

## Impact
Every other rank waits for them in each step.

## Diagnosis
Waiting per rank is steady over the steps: large on some ranks, small on the same others. The small ones came late.

## Mitigation
Find what only the late ranks share, and repair it or give them less work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import name_ranks, severity_for, step_cost
from ddiag.rulekit.hidden_waiting import costs_nothing
from ddiag.rulekit.skew import LateLimits, several_ranks

RULE = Rule(
    id="DD507",
    root_cause="RC-44",
    needs=(JobFacts, StepBudget, LateRanks),
    capture="profile all ranks over the same 5+ steps (torch.profiler on every rank, same schedule)",
    symptom="long collectives on some ranks, short ones on the same others in every step",
    evidence="a fixed set of two or more ranks causes most of the waiting; no single one of them stands out",
    applies=several_ranks,
    explained_by=("DD209", "DD101", "DD102", "DD103"),
)


@dataclass(frozen=True)
class Limits(LateLimits):
    """The common limits of late ranks."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, late = signals[JobFacts], signals[StepBudget], signals[LateRanks]
    if not late.late_together or budget.step_ms <= 0:
        return
    own = late.table.filter(pl.col("rank").is_in(list(late.late_together)))
    blame_share = min(float(own["blame_share"].sum()), 1.0)
    cost_ms = late.wait_ms_per_step * blame_share
    share = cost_ms / budget.step_ms
    if share < limits.wait_share or costs_nothing(budget, late.late_together, cost_ms):
        return
    hosts = _their_own_hosts(facts, late.late_together)
    who = name_ranks(late.late_together)
    where = f", all of host {hosts[0]}," if len(hosts) == 1 else ""
    yield Finding(
        title=f"{who}{where} arrive late together in every step; the others wait {cost_ms:.1f} ms per step "
        f"({share:.0%})",
        severity=severity_for(share, warning=limits.wait_share, critical=limits.critical_share),
        confidence=Confidence.MEDIUM,
        culprits=Culprits(ranks=late.late_together, hosts=hosts),
        victims=tuple(rank for rank in facts.ranks if rank not in late.late_together),
        evidence=(
            Evidence("waiting they cause", round(blame_share, 3), "of all waiting", None, "algorithm D2"),
            Evidence("waiting", round(late.wait_share, 4), "of step", limits.wait_share, "mean over ranks"),
            Evidence(
                "largest part of one rank", round(float(own["blame_share"].to_numpy().max()), 3), "of all waiting"
            ),
        ),
        fix=(
            "compare what only these ranks share: host, switch, device model, driver and clocks, cgroup CPU limit, "
            "pipeline stage or expert placement, length of their samples",
            "give them the same work: split layers and data evenly, or move the job off that host",
        ),
        verify="`ddiag analyze NEW_TRACES`: waiting spread evenly over ranks, and less of it",
        cost=step_cost(cost_ms, budget, facts),
        why="their collectives are the shortest in every step, which only ranks that arrive late can have",
        doubt="why they are late is not in the evidence: the ranks are compared with each other, and many are alike",
    )


def _their_own_hosts(facts: JobFacts, late: tuple[int, ...]) -> tuple[str, ...]:
    """Hosts all of whose ranks are late; none when some late rank lives elsewhere."""
    theirs = {facts.host_of.get(rank) for rank in late}
    others = {facts.host_of.get(rank) for rank in facts.ranks if rank not in late}
    return tuple(sorted(host for host in theirs if host)) if None not in theirs and not theirs & others else ()
