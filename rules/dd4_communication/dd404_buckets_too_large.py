"""Gradients are reduced in so few, so large buckets that reduction starts too late to hide.

## Meaning
A bucket is sent only when its last gradient is ready. With one or two huge buckets the transfer begins near the end of
backward, and the rest of it stands alone.

## Impact
Nearly the whole transfer of the last bucket is added to each step; peak memory grows by the bucket as well.

## Diagnosis
Few reductions per step, a long exposed tail after backward, and a simulated gain from smaller buckets.

## Mitigation
Lower `bucket_cap_mb` (DDP default 25 MiB) or `reduce_bucket_size` (DeepSpeed, in ELEMENTS).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import GradBuckets, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import human_bytes, severity_for, step_cost

MIB = 1024 * 1024

RULE = Rule(
    id="DD404",
    root_cause="RC-52",
    needs=(JobFacts, StepBudget, GradBuckets),
    capture="profile with torch >= 2.3 (collective sizes are in the trace) on two or more ranks over 5+ steps",
    symptom="one long all-reduce after backward",
    evidence="one to three reductions per step, exposed tail above 5 % of the step, simulated gain from "
    "smaller buckets",
)


@dataclass(frozen=True)
class Limits:
    largest_bytes: int = 64 * MIB
    """A smaller bucket than this is not 'too large' whatever its tail."""
    count_per_step: float = 3.0
    """With more reductions than this, reduction does start during backward."""
    tail_share: float = 0.05
    """Exposed tail after backward / step for a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, buckets = signals[JobFacts], signals[StepBudget], signals[GradBuckets]
    if budget.step_ms <= 0 or not buckets.total_bytes:
        return
    per_backward = buckets.count_per_step / max(buckets.synced_backwards, 1)
    if per_backward > limits.count_per_step or buckets.largest_bytes < limits.largest_bytes:
        return
    gain_ms = buckets.tail_exposed_ms if buckets.predicted_gain_ms is None else buckets.predicted_gain_ms
    share = gain_ms / budget.step_ms
    if share < limits.tail_share or (buckets.best_bytes or 0) >= buckets.largest_bytes:
        return
    size = max(round((buckets.best_bytes or 25 * MIB) / MIB), 1)
    yield Finding(
        title=f"{per_backward:.0f} {'reduction' if round(per_backward) == 1 else 'reductions'} of up to "
        f"{human_bytes(buckets.largest_bytes)} per backward: "
        "too large to overlap",
        severity=severity_for(share, warning=limits.tail_share, critical=limits.critical_share),
        confidence=Confidence.HIGH if buckets.predicted_gain_ms is not None else Confidence.MEDIUM,
        evidence=(
            Evidence("reductions per backward", round(per_backward, 1), "", limits.count_per_step, "gradient group"),
            Evidence("largest bucket", buckets.largest_bytes, "bytes", limits.largest_bytes, "gradient buckets"),
            Evidence("exposed tail", round(buckets.tail_exposed_ms, 3), "ms/step", None, "after backward ended"),
            Evidence("gain", round(gain_ms, 3), "ms/step", None, "bucket simulation, else the exposed tail"),
        ),
        fix=(
            f"DDP(bucket_cap_mb={size}), and do not set it to the size of the whole model",
            "DeepSpeed: reduce_bucket_size 5e7–2e8 elements with overlap_comm: true",
            "gradient_as_bucket_view=True saves the gradient bytes that large buckets duplicate",
        ),
        verify="`ddiag analyze NEW_TRACES`: more reductions per step, exposed tail below 2 % of the step",
        cost=step_cost(gain_ms, budget, facts),
        why="the last bucket starts when backward is nearly over, so nothing is left to hide it",
        doubt="with static_graph or very few parameters there may be nothing to split",
    )
