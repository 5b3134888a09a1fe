"""Sharded units are so small that every layer pays gather latency many times.

## Meaning
Each wrapped module is gathered by a collective of its own. Wrapping every linear layer gives hundreds of gathers
below a
few MiB, which cost latency and host time instead of bandwidth.

## Impact
Latency per gather times the number of gathers, in forward and again in backward.

## Diagnosis
All-gathers per step, their sizes, and how much of them stands alone.

## Mitigation
Wrap transformer blocks, not their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, ShardUnits, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import human_bytes, severity_for, step_cost

MIB = 1024 * 1024

RULE = Rule(
    id="DD407",
    root_cause="RC-53",
    needs=(JobFacts, StepBudget, ShardUnits),
    capture="profile with torch >= 2.3 (sizes are in the trace) over 5+ steps of a sharded job",
    symptom="thousands of small all-gathers; FSDP slower than DDP",
    evidence="more than 100 gathers per step with a median below 4 MiB, exposed",
    applies=lambda signals: signals.has(ShardUnits),
)


@dataclass(frozen=True)
class Limits:
    gathers_per_step: float = 100.0
    """Block-wise wrapping of a large model gives about 2 x blocks; more than this means parts of blocks."""
    median_bytes: int = 4 * MIB
    """Gathers below this are dominated by latency on common links."""
    exposed_share: float = 0.05
    """Exposed gather time / step for a warning."""
    critical_share: float = 0.30
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, units = signals[JobFacts], signals[StepBudget], signals[ShardUnits]
    if units.gathers_per_step < limits.gathers_per_step or not 0 < units.median_gather_bytes < limits.median_bytes:
        return
    share = units.gather_exposed_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if share < limits.exposed_share:
        return
    yield Finding(
        title=f"{units.gathers_per_step:.0f} parameter gathers per step of {human_bytes(units.median_gather_bytes)} "
        "(median): units are too small",
        severity=severity_for(share, warning=limits.exposed_share, critical=limits.critical_share),
        confidence=Confidence.HIGH if budget.n_steps >= 3 else Confidence.MEDIUM,
        evidence=(
            Evidence("gathers per step", round(units.gathers_per_step, 1), "", limits.gathers_per_step, "all_gather"),
            Evidence("median size", units.median_gather_bytes, "bytes", limits.median_bytes, "all_gather output"),
            Evidence("parameters gathered", units.total_gather_bytes, "bytes/step", None, "forward and backward"),
            Evidence("exposed gathers", round(units.gather_exposed_ms, 3), "ms/step", None, "not covered by compute"),
        ),
        fix=(
            "FSDP2: fully_shard(block) for every transformer block, then fully_shard(model); not for each Linear",
            "FSDP1: auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, "
            "transformer_layer_cls={YourBlock}); "
            "accelerate: fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP with fsdp_transformer_layer_cls_to_wrap",
            "DeepSpeed ZeRO-3: raise stage3_param_persistence_threshold and stage3_prefetch_bucket_size (elements)",
        ),
        verify="`ddiag analyze NEW_TRACES`: gathers per step near 2 x number of blocks, exposed gathers below 2 %",
        cost=step_cost(units.gather_exposed_ms, budget, facts),
        why="gathers this small are bound by latency, and their number multiplies it",
        doubt="a mixture-of-experts model legitimately gathers many small experts",
    )
