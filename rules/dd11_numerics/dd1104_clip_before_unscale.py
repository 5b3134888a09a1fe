"""Gradients are clipped while they are still multiplied by the loss scale.

## Meaning
With fp16 and GradScaler the gradients are scaled by up to 65536 until `scaler.unscale_(optimizer)`. Clipping before
that compares a norm thousands of times too large with the limit.

## Impact
Every step is clipped to next to nothing after unscaling: training hardly learns, or depends on the loss scale. No time
is lost, so nothing else shows it.

## Diagnosis
The recorder sees the order of `scale`, `unscale_` and `clip_grad_norm_` in every step.

## Mitigation
Call `scaler.unscale_(optimizer)` before clipping.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, OptimizerStep, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.quality import over_steps

RULE = Rule(
    id="DD1104",
    root_cause="RC-107",
    needs=(JobFacts, StepBudget, OptimizerStep),
    capture="ddiag run: traces do not show what is clipped and unscaled in which order",
    symptom="fp16 training with gradient clipping learns far more slowly than bf16, or the loss does not move",
    evidence="clip_grad_norm_ between scaler.scale and scaler.unscale_ in most steps",
    applies=lambda signals: (update := signals.get(OptimizerStep)) is not None and update.clipped_scaled_steps > 0,
    references=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",),
)


@dataclass(frozen=True)
class Limits:
    steps: int = 2
    """Steady steps with it for a finding."""
    share: float = 0.5
    """Of the steady steps: scripts that do it do it always."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    budget, update = signals[StepBudget], signals[OptimizerStep]
    found = update.clipped_scaled_steps
    if found < limits.steps or budget.n_steps <= 0 or found < limits.share * budget.n_steps:
        return
    yield Finding(
        title=f"gradients are clipped before scaler.unscale_() in {found} of {budget.n_steps} steps: the limit is "
        "compared with scaled gradients",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(where="clip_grad_norm_"),
        evidence=(
            Evidence("clipped while scaled", found, f"of {budget.n_steps} steps", limits.steps, over_steps(budget)),
            Evidence("clipped while scaled", round(found / budget.n_steps, 3), "of steps", limits.share, ""),
        ),
        fix=(
            "scaler.unscale_(optimizer) before torch.nn.utils.clip_grad_norm_(…), then scaler.step and scaler.update",
            "bf16 needs no scaler: torch.autocast(device, dtype=torch.bfloat16) without GradScaler",
        ),
        verify="`ddiag run` again: this finding is gone; the logged gradient norm falls by the loss scale",
        why="the recorder saw the clipping after the scaled backward pass and before any unscale_ of the same step",
        doubt="a limit that was multiplied by scaler.get_scale() by hand would be right",
    )
