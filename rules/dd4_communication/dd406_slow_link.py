"""A group moves data far more slowly than its links can.

## Meaning
After subtracting all waiting, large transfers of this group reach less than half of what the hardware gives. The trace
shows that, not why: TCP instead of RDMA, PCIe instead of NVLink, a dead rail, congestion, pinned NCCL settings.

## Impact
Transfer time is longer than it should be by the inverse of the efficiency.

## Diagnosis
Bus bandwidth from transfer time (nccl-tests convention) against the expected figure, messages large enough to be
bandwidth-bound only.

## Mitigation
Run `NCCL_DEBUG=INFO` once and read which transport was chosen; then nccl-tests on the same ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import Collectives, JobFacts, Links, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD406",
    root_cause="RC-93",
    needs=(JobFacts, StepBudget, Collectives, Links),
    capture="profile all ranks of one group with torch >= 2.3 over the same 5+ steps; sizes above 32 MB decide",
    symptom="communication takes twice as long as on another cluster",
    evidence="busbw from pure transfer time below half of the expected bandwidth on large messages",
    applies=lambda signals: (signals.get(JobFacts) or JobFacts((), None, "other")).device_kind not in ("cpu", "other"),
)


@dataclass(frozen=True)
class Limits:
    efficiency: float = 0.5
    """Achieved / expected below which a link is slow (80–90 % is normal on large messages)."""
    exposed_share: float = 0.03
    """Exposed transfer / step below which it does not matter to the job."""
    critical_share: float = 0.30
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, links = signals[JobFacts], signals[StepBudget], signals[Links]
    slow = links.table.filter(pl.col("efficiency") < limits.efficiency).sort("efficiency")
    if slow.is_empty() or budget.step_ms <= 0:
        return
    worst = slow.row(0, named=True)
    exposed_ms = budget.mean("comm_transfer_ms")
    gain_ms = exposed_ms * (1.0 - float(worst["efficiency"]))
    share = gain_ms / budget.step_ms
    if share < limits.exposed_share:
        return
    yield Finding(
        title=f"group {worst['group']} reaches {worst['busbw_gbps']:.1f} of {worst['expected_gbps']:.0f} GB/s "
        f"({worst['efficiency']:.0%}) in {worst['op']}",
        severity=severity_for(share, warning=limits.exposed_share, critical=limits.critical_share),
        confidence=Confidence.MEDIUM,
        culprits=Culprits(groups=tuple(dict.fromkeys(slow["group"].to_list()))),
        evidence=(
            Evidence("busbw", round(float(worst["busbw_gbps"]), 2), "GB/s", None, "bytes / pure transfer time"),
            Evidence("expected", round(float(worst["expected_gbps"]), 1), "GB/s", None, str(worst["basis"])),
            Evidence("efficiency", round(float(worst["efficiency"]), 3), "", limits.efficiency, "busbw / expected"),
            Evidence("message", int(worst["bytes"]), "bytes", None, "median size"),
            Evidence("exposed transfer", round(exposed_ms, 3), "ms/step", None, "mean over ranks"),
        ),
        fix=(
            "run one job with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH and look for `via "
            "NET/Socket`, `via SHM` on an "
            "NVLink machine, `GPU Direct RDMA Disabled`, fewer HCAs on one node",
            "unset pinned NCCL_ALGO / NCCL_PROTO / NCCL_*_NCHANNELS / NCCL_P2P_DISABLE / NCCL_IB_DISABLE and "
            "measure again",
            "`nvidia-smi topo -m` and `nvidia-smi nvlink -s` on every node of the group",
        ),
        verify="all_reduce_perf -b 32M -e 1G -f 2 -g 1 on the same ranks, then `ddiag analyze NEW_TRACES`",
        cost=step_cost(gain_ms, budget, facts),
        why="waiting was subtracted by taking the shortest duration over all ranks of each call",
        doubt="if the real topology is slower than the assumed one (PCIe-only machine, shared NIC), expected "
        "is too high",
        references=("nccl-tests doc/PERFORMANCE.md",),
    )
