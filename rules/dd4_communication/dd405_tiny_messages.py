"""Many tiny collectives per step: latency, not bandwidth.

## Meaning
The loop issues dozens to thousands of collectives that carry almost nothing: per-parameter reductions, metric or flag
all-reduces, `log(sync_dist=True)` for every key, gathers of Python objects.

## Impact
Each costs its start-up latency (10–100 µs over NVLink, more over the network) and a chance to wait for the slowest
rank.

## Diagnosis
Collectives below 64 KiB, counted per step, with the time they take alone.

## Mitigation
Pack them: one flat tensor per step, foreach/coalesced collectives, log every N steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import Collectives, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD405",
    root_cause="RC-92",
    needs=(JobFacts, StepBudget, Collectives),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA",
    symptom="hundreds of microsecond-long collectives; adding ranks slows the step",
    evidence="collectives below 64 KiB (or, without sizes, below 0.3 ms) many times per step, exposed",
    explained_by=("DD403", "DD407"),
)


@dataclass(frozen=True)
class Limits:
    bytes: int = 64 * 1024
    """Messages up to this size are pure latency on every common link."""
    short_ms: float = 0.3
    """Without sizes: median duration up to which a call is taken for a tiny one."""
    count_per_step: float = 20.0
    """Fewer per step cannot add up."""
    exposed_share: float = 0.03
    """Their exposed time / step for a warning."""
    critical_share: float = 0.30
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, comm = signals[JobFacts], signals[StepBudget], signals[Collectives]
    tiny = _tiny(comm.summary, limits)
    count = float(tiny["count_per_step"].sum())
    if tiny.is_empty() or count < limits.count_per_step or budget.step_ms <= 0:
        return
    exposed_ms = float(tiny["exposed_ms"].sum())
    wait_ms = float(tiny["wait_ms"].fill_null(0.0).sum())
    gain_ms = max(exposed_ms - wait_ms, 0.0)
    share = gain_ms / budget.step_ms
    if share < limits.exposed_share:
        return
    worst = tiny.sort("exposed_ms", descending=True).row(0, named=True)
    sized = tiny["bytes"].null_count() == 0
    yield Finding(
        title=f"{count:.0f} tiny collectives per step (mostly {worst['op']} in group {worst['group']}) "
        f"cost {gain_ms:.1f} ms",
        severity=severity_for(share, warning=limits.exposed_share, critical=limits.critical_share)
        if sized
        else Severity.INFO,
        confidence=Confidence.HIGH if sized and comm.matched_ranks >= 2 else Confidence.MEDIUM,
        culprits=Culprits(groups=tuple(sorted(set(tiny["group"].to_list())))),
        evidence=(
            Evidence("tiny collectives", round(count, 1), "per step", limits.count_per_step, "collectives summary"),
            Evidence("size", max(tiny["bytes"].to_list()), "bytes", limits.bytes, "largest of them")
            if sized
            else Evidence("size", "not in the evidence", "", None, "torch < 2.3: judged by duration"),
            Evidence("exposed", round(exposed_ms, 3), "ms/step", None, "not covered by compute"),
            Evidence("of it waiting", round(wait_ms, 3), "ms/step", None, "matched over ranks"),
        ),
        fix=(
            "reduce gradients through DDP buckets or one flattened tensor (torch._utils._flatten_dense_tensors, "
            "dist.all_reduce_coalesced, `with dist._coalescing_manager()`)",
            "metrics: stack them into one tensor and reduce once per N steps; Lightning: sync_dist only at epoch end",
            "replace per-step object gathers by a tensor collective",
        ),
        verify="`ddiag analyze NEW_TRACES`: collectives per step fall by 10x, exposed communication falls with them",
        cost=step_cost(gain_ms, budget, facts),
        why="their time does not depend on size; it is paid per call",
        doubt=_doubt(sized=sized, several=comm.matched_ranks >= 2),
    )


def _doubt(*, sized: bool, several: bool) -> str:
    said = [] if sized else ["a fast link moves megabytes as quickly, so these may be no small messages"]
    said += [] if several else ["of one rank alone, part of the time may be waiting for a late rank"]
    return "; ".join(said)


def _tiny(summary: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    per_call_ms = pl.col("exposed_ms") / pl.col("count_per_step")
    unsized = pl.col("bytes").is_null() & (per_call_ms <= limits.short_ms) & (pl.col("count_per_step") >= 2)
    return summary.filter((pl.col("bytes") <= limits.bytes) | unsized).filter(pl.col("op") != "barrier")
