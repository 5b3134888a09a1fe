"""Activation checkpointing computes the forward pass twice, perhaps without need.

## Meaning
Activations are dropped in the forward pass and computed again during backward. It saves memory and costs up to one more
forward, about a third of the compute of a step.

## Impact
The repeated forward is pure extra time, justified only by memory that is really needed.

## Diagnosis
Time of the repeated forward against the peak of allocated memory: with much memory unused, part of it is wasted. Where
memory was not recorded this rule only tells the price.

## Mitigation
Checkpoint fewer layers or only cheap operators (selective checkpointing), as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, KernelMix, Memory, Recompute, Signals, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, step_cost
from ddiag.rulekit.quality import confidence_for, over_steps


def has_subject(signals: Signals) -> bool:
    """Checkpointing to see: kernels without a repeated forward leave nothing to record."""
    return signals.has(Recompute) or not signals.has(KernelMix)


RULE = Rule(
    id="DD303",
    root_cause="RC-65",
    needs=(JobFacts, StepBudget, Recompute),
    optional=(Memory,),
    capture="profile 5+ steps with torch.profiler and profile_memory=True",
    symptom="25–33 % slower since activation checkpointing was switched on, and memory is half empty",
    evidence="forward operators repeated in backward, against peak memory / capacity",
    applies=has_subject,
    references=("https://docs.pytorch.org/docs/stable/checkpoint.html",),
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.05
    """Repeated forward / step from which it is worth a line."""
    recompute_ms: float = 1.0
    """Below this nothing is won."""
    room: float = 0.70
    """Peak memory / capacity below which checkpointing everything is questionable."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, recompute = signals[JobFacts], signals[StepBudget], signals[Recompute]
    share = recompute.ms_per_step / budget.step_ms if budget.step_ms > 0 else 0.0
    if recompute.ms_per_step < limits.recompute_ms or share < limits.share:
        return
    memory = signals.get(Memory)
    used = recompute.memory_share
    if used is None and memory is not None:
        used = memory.peak_share
    if used is not None and used >= limits.room:
        return
    price = f"recomputing activations takes {recompute.ms_per_step:.1f} ms per step ({share:.0%} of the step)"
    known = used is not None
    yield Finding(
        title=f"{price} while {1 - used:.0%} of device memory is never used" if used is not None else price,
        severity=Severity.WARNING if known else Severity.INFO,
        confidence=confidence_for(budget, facts) if known else Confidence.LOW,
        culprits=Culprits(where=recompute.detected_by or None),
        evidence=(
            Evidence("recompute", round(recompute.ms_per_step, 3), "ms/step", limits.recompute_ms, over_steps(budget)),
            Evidence("recompute", round(share, 4), "of step", limits.share, "time / median step"),
            Evidence("seen by", recompute.detected_by, "", None, "operator that starts the repeated forward"),
            Evidence("peak memory", round(used, 3), "of capacity", limits.room, "worst rank, allocator events")
            if used is not None
            else Evidence("peak memory", "not recorded", "", limits.room, "needs profile_memory=True"),
        ),
        fix=(
            "checkpoint every second layer first, then fewer while memory stays below 90 % (Megatron: "
            "--recompute-method block --recompute-num-layers N; Hugging Face: gradient_checkpointing=False if it fits)",
            "selective checkpointing, which keeps matrix products: create_selective_checkpoint_contexts of "
            "torch.utils.checkpoint; Megatron --recompute-granularity selective",
            "or spend the free memory on a larger micro-batch, which makes the recomputation pay",
        )
        if known
        else (
            "record memory first: torch.profiler.profile(profile_memory=True) or torch.cuda.max_memory_allocated(); if "
            "the peak is far below capacity, checkpoint fewer layers",
        ),
        verify="`ddiag analyze NEW_TRACES` with profile_memory=True: recompute falls, peak memory stays below 90 %",
        cost=step_cost(recompute.ms_per_step, budget, facts),
        why="forward operators run again inside backward below the checkpoint's span",
        doubt="the freed memory may be needed by longer sequences than those recorded, or in evaluation",
    )
