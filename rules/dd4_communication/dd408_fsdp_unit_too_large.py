"""The whole model is one sharded unit: nothing overlaps and the peak holds all parameters.

## Meaning
Only the root is wrapped. One all-gather fetches every parameter before the first layer can run, and one reduce-scatter
waits for the whole backward.

## Impact
The gather stands alone in each step, and peak memory is that of the unsharded model.

## Diagnosis
One or two gathers per step, the largest carrying nearly all parameters, mostly exposed.

## Mitigation
Wrap each block so that the next gather hides behind the current block's compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, ShardUnits, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import human_bytes, severity_for, step_cost

MIB = 1024 * 1024

RULE = Rule(
    id="DD408",
    root_cause="RC-53",
    needs=(JobFacts, StepBudget, ShardUnits),
    capture="profile with torch >= 2.3 (sizes are in the trace) over 5+ steps of a sharded job",
    symptom="FSDP uses as much memory as DDP and starts each step with a long all-gather",
    evidence="at most two gathers per step, the largest with most parameters, exposed",
    applies=lambda signals: signals.has(ShardUnits),
)


@dataclass(frozen=True)
class Limits:
    gathers_per_step: float = 2.5
    """Root-only wrapping gathers once in forward and at most once in backward."""
    largest_bytes: int = 64 * MIB
    """A smaller model may well be one unit."""
    exposed_share: float = 0.05
    """Exposed gather and scatter time / step for a warning."""
    critical_share: float = 0.30
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, units = signals[JobFacts], signals[StepBudget], signals[ShardUnits]
    if units.gathers_per_step > limits.gathers_per_step or units.largest_gather_bytes < limits.largest_bytes:
        return
    exposed_ms = units.gather_exposed_ms + units.scatter_exposed_ms
    share = exposed_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if share < limits.exposed_share:
        return
    yield Finding(
        title=f"all parameters are one unit: {units.gathers_per_step:.0f} "
        f"{'gather' if round(units.gathers_per_step) == 1 else 'gathers'} per step of "
        f"{human_bytes(units.largest_gather_bytes)}",
        severity=severity_for(share, warning=limits.exposed_share, critical=limits.critical_share),
        confidence=Confidence.HIGH if budget.n_steps >= 3 else Confidence.MEDIUM,
        evidence=(
            Evidence("gathers per step", round(units.gathers_per_step, 1), "", limits.gathers_per_step, "all_gather"),
            Evidence("largest gather", units.largest_gather_bytes, "bytes", limits.largest_bytes, "all_gather output"),
            Evidence("exposed gathers", round(units.gather_exposed_ms, 3), "ms/step", None, "not covered by compute"),
            Evidence("exposed scatters", round(units.scatter_exposed_ms, 3), "ms/step", None, "not covered by compute"),
        ),
        fix=(
            "FSDP2: call fully_shard on each transformer block before fully_shard(model)",
            "FSDP1: pass auto_wrap_policy (transformer_auto_wrap_policy with the block class)",
            "accelerate: fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, not NO_WRAP",
        ),
        verify="print(model) shows FSDP at each block; `ddiag analyze NEW_TRACES`: gathers per step = 2 x blocks or so",
        cost=step_cost(exposed_ms, budget, facts),
        why="a single gather must end before the first layer starts, so nothing can hide it",
        doubt="a model of one block, or parameters kept gathered on purpose (reshard_after_forward=False)",
    )
