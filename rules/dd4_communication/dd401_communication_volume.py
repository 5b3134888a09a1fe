"""There is more communication than this much compute can hide.

## Meaning
Communication overlaps with compute, yet a large part still stands alone: each rank moves more bytes per step than its
compute can cover. Waiting for a late rank is not counted here.

## Impact
The exposed part is lost on every device in every step, and grows with the number of ranks.

## Diagnosis
Communication is well overlapped (overlap share) but the exposed transfer time is still a large share of the step.
Compare bytes per step with compute time: doubling the micro-batch doubles compute and leaves the bytes as they are.

## Mitigation
Do more compute per byte (larger micro-batch, gradient accumulation with `no_sync()`), send fewer bytes (bf16 gradients,
HYBRID_SHARD across nodes), or shard less (a lower ZeRO stage) where memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import Collectives, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD401",
    root_cause="RC-91",
    needs=(JobFacts, StepBudget, Collectives),
    capture="profile two or more ranks over the same 5+ steps with torch.profiler (activities CPU and CUDA)",
    symptom="scaling efficiency falls with every node although overlap is on",
    evidence="exposed transfer time is a large share of the step while most communication already overlaps",
    explained_by=("DD403", "DD404", "DD405", "DD406", "DD407", "DD408", "DD409", "DD801"),
)


@dataclass(frozen=True)
class Limits:
    exposed_share: float = 0.08
    """Exposed transfer / step from which it is worth a finding (below, tuning rarely pays)."""
    critical_share: float = 0.30
    """From here communication is the first thing to fix."""
    overlap_share: float = 0.20
    """Below this next to nothing overlaps, which is DD402's subject."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, comm = signals[JobFacts], signals[StepBudget], signals[Collectives]
    exposed_ms = budget.mean("comm_transfer_ms")
    share = budget.share("comm_transfer_ms")
    if comm.overlap_share < limits.overlap_share or share < limits.exposed_share:
        return
    if comm.matched_ranks < 2:
        yield Abstain(
            f"exposed communication is {share:.0%} of the step, but one rank's evidence cannot tell moving data from "
            "waiting for a late rank",
            RULE.capture,
        )
        return
    if comm.mostly_unseen:
        yield Abstain(
            f"exposed communication is {share:.0%} of the step, but members of its groups left no evidence: one of "
            "them may be the late one",
            "profile all ranks of the job (or all of one group) over the same steps",
        )
        return
    per_step = _bytes_per_step(comm)
    evidence = [
        Evidence("exposed transfer", round(exposed_ms, 3), "ms/step", None, f"mean of {budget.n_steps} steady steps"),
        Evidence("share of the step", round(share, 4), "of step", limits.exposed_share, "exposed transfer / step"),
        Evidence("overlapped", round(comm.overlap_share, 3), "of communication", limits.overlap_share, "all ranks"),
        Evidence("compute", round(budget.mean("compute_ms"), 3), "ms/step", None, "as in the parts of a step"),
    ]
    if per_step:
        evidence.append(Evidence("bytes sent", per_step, "bytes/step", None, "input tensors, mean per rank"))
    yield Finding(
        title=f"communication is {share:.0%} of the step even though {comm.overlap_share:.0%} of it overlaps",
        severity=severity_for(share, warning=limits.exposed_share, critical=limits.critical_share),
        confidence=Confidence.HIGH if budget.n_steps >= 3 else Confidence.MEDIUM,
        evidence=tuple(evidence),
        fix=(
            "raise the micro-batch, or accumulate gradients under `no_sync()` (FSDP2: "
            "set_requires_gradient_sync(False))",
            "send fewer bytes: bf16 gradient communication (DDP bf16_compress_hook, FSDP MixedPrecision.reduce_dtype)",
            "across nodes: ShardingStrategy.HYBRID_SHARD or a 2-D device mesh, so that gathers stay inside the node",
        ),
        verify="`ddiag analyze NEW_TRACES`: exposed transfer must fall while compute per step rises or stays",
        cost=step_cost(exposed_ms, budget, facts, share=share),
        why="transfer time is measured over matched ranks with waiting subtracted, and most of it is already hidden",
        doubt="busbw far below the link's rate (see the communication table) would make the link, not the "
        "volume, the cause",
    )


def _bytes_per_step(comm: Collectives) -> int:
    table = comm.summary.drop_nulls("bytes")
    if table.is_empty():
        return 0
    return int((table["bytes"].cast(float) * table["count_per_step"]).sum())
