"""The host has too few CPUs for what wants to run on it, so training threads wait for their turn.

## Meaning
More threads are ready to run than there are CPUs: the job's own (ranks, loader workers, OpenMP threads), or those of
somebody else on the same host or in the same container's CPU quota.

## Impact
A training thread that is not scheduled launches late, computes late and arrives late at collectives, on a different
rank each time. What looks like an uneven load of the ranks may be only this.

## Diagnosis
Samples of the host during the steps: runnable threads per CPU, the share of time in which somebody waited for a CPU,
the job's own share of the CPUs, time stolen by the hypervisor, throttling by the control group.

## Mitigation
Fewer threads than CPUs: bind ranks to cores of their own, limit OpenMP threads and loader workers, and keep other work
off the host (or raise the container's CPU limit).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddiag.model.signals import HostLoad, JobFacts, LateRanks, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, step_cost

RULE = Rule(
    id="DD209",
    root_cause="RC-50",
    needs=(JobFacts, StepBudget, HostLoad),
    optional=(LateRanks,),
    capture="ddiag run samples the host; at least a few seconds of steady steps",
    symptom="steps jitter, `top` shows a load average far above the number of CPUs",
    evidence="runnable threads per CPU and time spent waiting for a CPU, sampled during the steps",
    applies=lambda signals: signals.has(HostLoad),
)


@dataclass(frozen=True)
class Limits:
    runnable_per_cpu: float = 2.0
    """Threads that want to run per CPU; a job on CPUs alone keeps about one per CPU busy."""
    waiting_share: float = 0.6
    """Part of the time in which at least one thread waited for a CPU."""
    stolen_share: float = 0.1
    """CPU time the hypervisor gave to others, from which it matters."""
    throttled_share: float = 0.1
    """Part of the time in which the control group's CPU quota held the job back, from which it matters."""
    own_share: float = 0.7
    """Part of the CPUs that the job itself uses, from which the crowd is its own."""
    others_share: float = 0.15
    """Part of the CPUs that somebody else must use to be part of the crowd."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget = signals[JobFacts], signals[StepBudget]
    for row in signals[HostLoad].table.iter_rows(named=True):
        crowded = row["runnable_per_cpu"] >= limits.runnable_per_cpu and (
            row["waiting_share"] is None or row["waiting_share"] >= limits.waiting_share
        )
        stolen = (row["steal_share"] or 0.0) >= limits.stolen_share
        throttled = (row["throttled_share"] or 0.0) >= limits.throttled_share
        if crowded or stolen or throttled:
            finding = _finding(row, signals[HostLoad].seconds, limits, throttled=throttled, stolen=stolen)
            waiting_ms = budget.mean("comm_wait_ms") * (1.0 - _explained(signals.get(LateRanks)))
            yield replace(finding, cost=step_cost(waiting_ms, budget, facts))


def _explained(late: LateRanks | None) -> float:
    """Share of the waiting that is due to one rank whose lateness has nothing to do with CPUs."""
    if late is None or late.persistent_rank is None:
        return 0.0
    row = late.table.filter(late.table["rank"] == late.persistent_rank).row(0, named=True)
    return float(row["blame_share"]) if row["cause"] in ("input", "device") else 0.0


def _finding(row: Mapping[str, Any], seconds: float, limits: Limits, *, throttled: bool, stolen: bool) -> Finding:
    own = _own(row, limits)
    outside = throttled or stolen or (row["job_share"] is not None and not own)
    share = f"; this job gets {row['job_share']:.0%} of their time" if row["job_share"] is not None else ""
    what = f"{row['runnable_per_cpu']:.1f} threads want to run per CPU"
    if throttled:
        what = f"the control group's CPU quota holds the job back {row['throttled_share']:.0%} of the time"
    elif stolen:
        what = f"the hypervisor takes {row['steal_share']:.0%} of the CPU time"
    return Finding(
        title=f"too few CPUs: {what}{share}",
        severity=Severity.WARNING if outside else Severity.INFO,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(hosts=(row["host"],) if row["host"] else ()),
        evidence=tuple(_evidence(row, seconds, limits)),
        fix=(
            "limit threads: OMP_NUM_THREADS = CPUs of the host / ranks on it, and ranks x num_workers below the number "
            "of CPUs",
            "ranks on cores of their own: torchrun --numa-binding=node, deepspeed --bind_cores_to_rank, Slurm "
            "--cpus-per-task",
            "find who else runs there (`top -H`); containers: raise the CPU limit (nr_throttled in cpu.stat must not "
            "grow)",
        ),
        verify="`ddiag run` again: fewer than "
        f"{limits.runnable_per_cpu:g} runnable threads per CPU, and nobody waits for a CPU most of the time",
        why="threads that are ready to run were waiting for a CPU while the steps ran",
        doubt="the cost stated is all waiting for other ranks that no late input or device explains, of which this may "
        "be only a part; threads of low priority count as well, and hardly disturb",
    )


def _own(row: Mapping[str, Any], limits: Limits) -> bool:
    """The crowd is the job's own: it has most of the CPUs, or nobody else has much of them."""
    if row["job_share"] is None:
        return False
    others = None if row["busy_share"] is None else row["busy_share"] - row["job_share"]
    return row["job_share"] >= limits.own_share or (others is not None and others < limits.others_share)


def _evidence(row: Mapping[str, Any], seconds: float, limits: Limits) -> Iterator[Evidence]:
    over = f"samples over {seconds:.0f} s"
    yield Evidence("runnable threads", round(row["runnable_per_cpu"], 2), "per CPU", limits.runnable_per_cpu, over)
    yield Evidence("CPUs", row["cpus"], "", None, row["host"] or "")
    for label, name, limit in (
        ("somebody waits for a CPU", "waiting_share", limits.waiting_share),
        ("this job's part", "job_share", None),
        ("stolen by the hypervisor", "steal_share", limits.stolen_share),
        ("throttled", "throttled_share", limits.throttled_share),
    ):
        if row[name] is not None:
            yield Evidence(label, round(row[name], 3), "of the time" if "_share" in name else "", limit, over)
