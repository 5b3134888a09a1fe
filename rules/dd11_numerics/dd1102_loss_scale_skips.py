"""The gradient scaler throws updates away.

## Meaning
With fp16 the loss is scaled so that small gradients survive. When gradients overflow, the scaler skips the optimizer
step and halves the scale.

## Impact
A skipped step is computed and paid for, but teaches nothing. Skips that go on mean that the scale collapses: training
stands still.

## Diagnosis
Steps whose update was skipped, as a share of all steady steps. One to five skips right after the start are how the
scale is found and no fault.

## Mitigation
bf16 needs no scaler. Otherwise find what overflows: learning rate, a bad batch, a model trained in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, KernelMix, OptimizerStep, Signals, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View, severity_for, step_cost
from ddiag.rulekit.quality import over_steps


def has_subject(signals: Signals) -> bool:
    """An update to see: kernels without any are inference."""
    return signals.has(OptimizerStep) or not signals.has(KernelMix)


RULE = Rule(
    id="DD1102",
    root_cause="RC-62",
    needs=(JobFacts, StepBudget, OptimizerStep),
    capture="profile 20+ steps after the start with torch.profiler, optimizer.step() included",
    symptom="the loss stays flat or jumps; the log says OVERFLOW, or the loss scale keeps falling",
    evidence="steps with a scaler check but without an optimizer update",
    applies=has_subject,
    references=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@dataclass(frozen=True)
class Limits:
    skipped: int = 2
    """Skipped steps for a finding: a single one happens in healthy fp16 runs."""
    skipped_share: float = 0.05
    """Skipped / steady steps for a warning; the scaler itself tries a higher scale only every 2000 steps."""
    critical_share: float = 0.5
    """From here training hardly moves."""
    steps: int = 5
    """Steady steps without which nothing is said: the scale may still be settling."""
    sure_steps: int = 20
    """Steady steps from which a share is well known."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, update = signals[JobFacts], signals[StepBudget], signals[OptimizerStep]
    updates = budget.n_steps / max(update.steps_per_optimizer_step, 1.0)
    if budget.n_steps < limits.steps or update.skipped_steps < limits.skipped or updates <= 0:
        return
    share = min(update.skipped_steps / updates, 1.0)
    if share < limits.skipped_share:
        return
    yield Finding(
        title=f"the gradient scaler skipped {update.skipped_steps} of {updates:.0f} updates ({share:.0%})",
        severity=severity_for(share, warning=limits.skipped_share, critical=limits.critical_share),
        confidence=Confidence.HIGH if budget.n_steps >= limits.sure_steps else Confidence.MEDIUM,
        culprits=Culprits(where="GradScaler"),
        evidence=(
            Evidence(
                "skipped updates", update.skipped_steps, f"of {updates:.0f}", limits.skipped, "checked, not applied"
            ),
            Evidence("skipped updates", round(share, 4), "of updates", limits.skipped_share, over_steps(budget)),
            *_checks(update),
        ),
        fix=(
            'bf16 instead of fp16 where the device has it: torch.autocast("cuda", dtype=torch.bfloat16) without '
            "GradScaler "
            "(models pre-trained in bf16 overflow in fp16)",
            "call scaler.unscale_(optimizer) before clip_grad_norm_, never after: clipping scaled gradients breaks "
            "both",
            "lower the learning rate or lengthen its warm-up; skip or clean batches that give infinite losses",
            "DeepSpeed: fp16.initial_scale_power lower, fp16.hysteresis 2; FSDP1: ShardedGradScaler, not GradScaler",
        ),
        verify="log scaler.get_scale(): it must stop falling; `ddiag analyze NEW_TRACES` must show fewer than "
        f"{limits.skipped_share:.0%} skipped updates",
        cost=step_cost(share * budget.step_ms, budget, facts),
        why="in these steps the scaler was to update the parameters, and the optimizer did not run",
        doubt="right after the start the scale is still being found; record later steps to be sure",
    )


def _checks(update: OptimizerStep) -> tuple[Evidence, ...]:
    """How often gradients are looked at for infinities, where the evidence shows it."""
    if not update.scaler_checks_per_step:
        return ()
    return (Evidence("scaler checks", round(update.scaler_checks_per_step, 2), "per step", None, "unscale operators"),)
