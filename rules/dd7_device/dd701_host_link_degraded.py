"""One rank's host link (PCIe) is much slower than its peers'.

## Meaning
Large copies between host and this device reach a fraction of what the same copies reach on the other ranks: a link that
trained at fewer lanes or a lower generation, a device behind the wrong socket, or a shared switch.

## Impact
Copies take longer on this rank; when they are on the critical path the whole job waits.

## Diagnosis
Bandwidth of copies of at least 1 MiB per rank, against the median of the other ranks.

## Mitigation
Read link width and generation under load; reseat or drain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import Copies, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.cost import step_cost

RULE = Rule(
    id="DD701",
    root_cause="RC-48",
    needs=(JobFacts, StepBudget, Copies),
    capture="profile all ranks over the same steps with activities CPU and CUDA (copies carry their bytes)",
    symptom="one GPU's host-to-device copies take twice as long",
    evidence="bandwidth of large copies of one rank below 60 % of its peers' median",
    applies=lambda signals: len((signals.get(JobFacts) or JobFacts((), None, "other")).ranks) > 2,
)


@dataclass(frozen=True)
class Limits:
    ratio: float = 0.6
    """Bandwidth / median of peers below which the link is suspect (half the lanes give 0.5)."""
    peers: int = 3
    """Other ranks with large copies needed for a median."""
    exposed_share: float = 0.02
    """Exposed copies / step from which it is a warning; below it is information."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, copies = signals[JobFacts], signals[StepBudget], signals[Copies]
    if copies.per_rank is None:
        return
    for column, word in (("h2d_gbps", "host-to-device"), ("d2h_gbps", "device-to-host")):
        suspect = _suspect(copies.per_rank, column, limits)
        if suspect is None:
            continue
        rank, speed, peers = suspect
        host = facts.host_of.get(rank)
        yield Finding(
            title=f"rank {rank}: {word} copies at {speed:.1f} GB/s, its peers reach {peers:.1f}",
            severity=_severity(budget, rank, limits),
            confidence=Confidence.MEDIUM,
            culprits=Culprits(ranks=(rank,), hosts=(host,) if host else ()),
            evidence=(
                Evidence("bandwidth", round(speed, 2), "GB/s", None, f"rank {rank}, copies >= 1 MiB"),
                Evidence("peers", round(peers, 2), "GB/s", None, "median of the other ranks"),
                Evidence("ratio", round(speed / peers, 3), "", limits.ratio, "this rank / peers"),
            ),
            fix=(
                "under load: `nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,"
                "pcie.link.width.current,pcie.link.width.max --format=csv`",
                "`lspci -vv | grep -i LnkSta` for `(downgraded)`; dmesg for AER errors; reseat, riser, BIOS, RMA",
                "bind the process to the socket of its device (numactl, torchrun --numa-binding)",
            ),
            verify="`nvbandwidth -t host_to_device_memcpy_ce` equal on all devices of the node",
            cost=_cost(budget, facts, rank, speed / peers),
            why="copies of the same size class are compared between ranks of one job",
            doubt="pageable memory on this rank only, or a busy memory controller, gives the same picture",
        )
        return


def _suspect(per_rank: pl.DataFrame, column: str, limits: Limits) -> tuple[int, float, float] | None:
    """(rank, GB/s, peers' median) of the one rank far below the others; None if there is none or more than one."""
    speeds = per_rank.select("rank", column).drop_nulls().sort(column)
    if speeds.height < limits.peers + 1:
        return None
    rank, speed = speeds.row(0)
    median = speeds[column][1:].median()
    second = float(speeds[column][1])
    if not isinstance(median, (int, float)) or median <= 0:
        return None
    alone = second >= limits.ratio * float(median)
    return (int(rank), float(speed), float(median)) if speed < limits.ratio * float(median) and alone else None


def _severity(budget: StepBudget, rank: int, limits: Limits) -> Severity:
    return Severity.WARNING if budget.share("copy_ms", rank) >= limits.exposed_share else Severity.INFO


def _cost(budget: StepBudget, facts: JobFacts, rank: int, ratio: float) -> Cost:
    """What this rank's exposed copies would save at its peers' speed."""
    return step_cost(budget.mean("copy_ms", rank) * (1.0 - ratio), budget, facts)
