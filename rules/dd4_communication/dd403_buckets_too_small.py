"""Gradients are reduced in buckets so small that start-up latency dominates.

## Meaning
Each reduction pays a fixed latency. Many small buckets pay it many times; the links never reach their bandwidth.

## Impact
Latency times the number of buckets is added to communication, and what backward cannot hide is added to the step.

## Diagnosis
Reductions per step, their sizes, and the fitted latency (alpha) and bandwidth (beta): the time a step would need
with the
recommended size comes from a simulation over the observed moments at which gradients became ready.

## Mitigation
Raise `bucket_cap_mb` (DDP), `reduce_bucket_size` (DeepSpeed, in ELEMENTS) or `--ddp-bucket-size` (Megatron).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import GradBuckets, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import human_bytes, severity_for, step_cost

MIB = 1024 * 1024

RULE = Rule(
    id="DD403",
    root_cause="RC-52",
    needs=(JobFacts, StepBudget, GradBuckets),
    capture="profile with torch >= 2.3 (collective sizes are in the trace) on two or more ranks over 5+ steps",
    symptom="hundreds of tiny all-reduces per step",
    evidence="median bucket below 1 MiB, many per step, and a fitted latency that explains their time",
)


@dataclass(frozen=True)
class Limits:
    median_bytes: int = 4 * MIB
    """Median bucket below which latency can dominate (the default cap is 25 MiB)."""
    count_per_step: float = 12.0
    """Fewer reductions than this cannot cost much latency."""
    gain_share: float = 0.03
    """Predicted gain / step for a warning (or exposed / step when no prediction is possible)."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, buckets = signals[JobFacts], signals[StepBudget], signals[GradBuckets]
    if buckets.count_per_step < limits.count_per_step or budget.step_ms <= 0:
        return
    if not buckets.total_bytes:
        return
    if buckets.median_bytes >= limits.median_bytes:
        return
    # Larger ones would save the latency of reductions that are waited for one by one, and leave the transfer exposed.
    each_awaited = buckets.issued != "backward"
    predicted = buckets.predicted_gain_ms is not None and (buckets.best_bytes or 0) > 2 * buckets.median_bytes
    predicted = predicted and not each_awaited
    gain_ms = (buckets.predicted_gain_ms or 0.0) if predicted else buckets.exposed_ms
    if each_awaited:
        gain_ms = _latency_ms(buckets)
    share = gain_ms / budget.step_ms
    if share < limits.gain_share:
        return
    yield Finding(
        title=f"{buckets.count_per_step:.0f} gradient reductions per step of {human_bytes(buckets.median_bytes)} each "
        "(median): buckets are too small",
        severity=severity_for(share, warning=limits.gain_share, critical=limits.critical_share),
        confidence=Confidence.HIGH if predicted and budget.n_steps >= 3 else Confidence.MEDIUM,
        evidence=_evidence(buckets, limits),
        fix=_fixes(buckets),
        verify="`ddiag analyze NEW_TRACES`: reductions per step fall, busbw of the gradient group rises",
        cost=step_cost(gain_ms, budget, facts),
        why="the simulated step with larger buckets is faster by the stated gain"
        if predicted
        else "the latency of so many reductions, each waited for, adds up to the stated gain"
        if each_awaited
        else "small reductions stand alone at the end of backward",
        doubt="if the gradients belong to frozen or sparse modules that arrive late, larger buckets cannot "
        "start earlier",
    )


def _latency_ms(buckets: GradBuckets) -> float:
    """Per step, of the reductions that default-sized buckets would do without; 0 without a fit."""
    spared = buckets.count_per_step - max(1.0, buckets.total_bytes / (25 * MIB))
    return min(max(spared, 0.0) * (buckets.alpha_us or 0.0) / 1e3, buckets.exposed_ms)


def _evidence(buckets: GradBuckets, limits: Limits) -> tuple[Evidence, ...]:
    rows = [
        Evidence("reductions per step", round(buckets.count_per_step, 1), "", limits.count_per_step, "gradient group"),
        Evidence("median size", buckets.median_bytes, "bytes", limits.median_bytes, "gradient buckets"),
        Evidence("gradients", buckets.total_bytes, "bytes/step", None, "sum of buckets"),
        Evidence("exposed", round(buckets.exposed_ms, 3), "ms/step", None, "reductions not covered by compute"),
    ]
    if buckets.alpha_us is not None:
        rows.append(Evidence("latency per reduction", round(buckets.alpha_us, 1), "µs", None, "alpha-beta fit"))
    if buckets.beta_gbps is not None:
        rows.append(Evidence("bandwidth", round(buckets.beta_gbps, 2), "GB/s", None, "alpha-beta fit"))
    if buckets.predicted_gain_ms is not None:
        rows.append(
            Evidence("predicted gain", round(buckets.predicted_gain_ms, 3), "ms/step", None, "bucket simulation")
        )
    return tuple(rows)


def _fixes(buckets: GradBuckets) -> tuple[str, ...]:
    size = max(buckets.best_bytes or 25 * MIB, MIB)
    return (
        f"DDP(bucket_cap_mb={round(size / MIB)})",
        "DeepSpeed: reduce_bucket_size counts elements, not bytes (default 5e8); use 5e7 or more",
        "Megatron: --ddp-bucket-size (elements); leave it unset for max(40e6, 1e6 x DP size)",
    )
