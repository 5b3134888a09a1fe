"""The optimizer updates parameters in many passes instead of one fused kernel.

## Meaning
Without `fused=True` the update is a series of element-wise operators over all parameters: `for_loop` launches a handful
of kernels per parameter tensor, `foreach` groups tensors but still reads and writes memory once per operator.

## Impact
The update is bound by memory traffic: AdamW moves about 20 words per parameter in separate passes, 7 when fused. The
for-loop form also costs the host a launch per tensor and operator.

## Diagnosis
Kernels and time per optimizer step, and which implementation they belong to.

## Mitigation
`fused=True` for Adam, AdamW, SGD and Adagrad; for others a fused library version or `torch.compile` of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, KernelMix, OptimizerStep, Signals, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps


def has_subject(signals: Signals) -> bool:
    """A device, and an update to see: inference has none, which leaves nothing to record."""
    facts = signals.get(JobFacts)
    if facts is not None and facts.device_kind == "cpu":
        return False
    return signals.has(OptimizerStep) or not signals.has(KernelMix)


RULE = Rule(
    id="DD301",
    root_cause="RC-88",
    needs=(JobFacts, StepBudget, OptimizerStep),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA, optimizer.step() included",
    symptom="optimizer.step() takes a noticeable part of the step; thousands of tiny kernels after backward",
    evidence="for-loop or foreach kernels in the optimizer's span",
    applies=has_subject,
    references=("https://docs.pytorch.org/docs/stable/optim.html#algorithms",),
)
FUSED = ("adam", "adamw", "sgd", "adagrad")
"""torch.optim classes that take fused=True (PyTorch 2.4+ for all four)."""
ELEMENTWISE = (
    *FUSED,
    "rmsprop",
    "nadam",
    "radam",
    "adamax",
    "adadelta",
    "asgd",
    "rprop",
    "lamb",
    "lars",
    "lion",
    "adan",
)
"""Optimizers whose update is element-wise throughout; Shampoo, Muon or LBFGS multiply matrices and are not meant."""
WORDS_FUSED, WORDS_SEPARATE = 7.0, 20.0
"""Words AdamW moves per parameter: read p, g, m, v and write p, m, v, against the sum over its separate operators."""


@dataclass(frozen=True)
class Limits:
    gain_share: float = 0.03
    """Time a fused update would save / step for a finding."""
    warning_share: float = 0.08
    """From here it is a warning."""
    critical_share: float = 0.30
    """From here it is the first thing to fix."""
    gain_ms: float = 1.0
    """Below this a fused update changes nothing one could measure."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, update = signals[JobFacts], signals[StepBudget], signals[OptimizerStep]
    if update.implementation not in ("for_loop", "foreach") or not budget.on_device or budget.step_ms <= 0:
        return
    if update.name and not update.name.lower().endswith(ELEMENTWISE):
        return
    launching_ms = update.starved_ms or 0.0 if update.implementation == "for_loop" else 0.0
    gain_ms = update.ms_per_step * (1 - WORDS_FUSED / WORDS_SEPARATE) + launching_ms
    share = gain_ms / budget.step_ms
    if gain_ms < limits.gain_ms or share < limits.gain_share:
        return
    name = update.name or "the optimizer"
    yield Finding(
        title=f"{name} runs as {update.implementation.replace('_', '-')}: {update.kernels_per_step:,.0f} kernels and "
        f"{update.ms_per_step:.1f} ms of device time per step, of which a fused update saves up to {gain_ms:.1f} ms",
        severity=severity_over_steps(share, budget, warning=limits.warning_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts),
        culprits=Culprits(where=f"{name}.step"),
        evidence=(
            Evidence("implementation", update.implementation, "", "fused", "kernels below the optimizer's span"),
            Evidence("optimizer kernels", round(update.kernels_per_step, 1), "per step", None, over_steps(budget)),
            Evidence("device time", round(update.ms_per_step, 3), "ms/step", None, "optimizer kernels"),
            Evidence(
                "host time", round(update.host_ms_per_step, 3), "ms/step", None, "optimizer span, training thread"
            ),
            *_starved(update),
            Evidence("possible gain", round(gain_ms, 3), "ms/step", limits.gain_ms, "less traffic, no idling"),
            Evidence("possible gain", round(share, 4), "of step", limits.gain_share, "gain / median step"),
        ),
        fix=_fixes(update),
        verify="`ddiag analyze NEW_TRACES`: implementation reads fused and optimizer kernels per step fall to dozens; "
        "compare the loss curve of the first 100 steps",
        cost=step_cost(gain_ms, budget, facts),
        why="the kernels below the optimizer's span are those of the separate operators",
        doubt=doubts(
            facts, "the gain is an estimate from memory traffic; with sharded optimizers the share is smaller"
        ),
    )


def _starved(update: OptimizerStep) -> tuple[Evidence, ...]:
    """How long the device ran dry while the host launched the update, where that is known."""
    if update.starved_ms is None:
        return ()
    source = "device waits for launches inside the optimizer's span"
    return (Evidence("device idle meanwhile", round(update.starved_ms, 3), "ms/step", None, source),)


def _fixes(update: OptimizerStep) -> tuple[str, ...]:
    name = update.name or "AdamW"
    trainer = " (Hugging Face: optim='adamw_torch_fused')" if name.lower() == "adamw" else ""
    first = (
        f"torch.optim.{name}(…, fused=True){trainer}"
        if name.lower() in FUSED
        else f"{name}: torch.compile(optimizer.step), or a fused version (DeepSpeed FusedAdam or FusedLamb, Apex, "
        "bitsandbytes)"
    )
    steps = [first]
    if update.implementation == "for_loop":
        steps.append("at least foreach=True; it is off when parameters are of mixed devices or tensor subclasses")
    if update.zero_grad_kernels_per_step > 1:
        steps.append(
            f"zero_grad(set_to_none=True): {update.zero_grad_kernels_per_step:.0f} kernels per step only clear "
            "gradients"
        )
    return tuple(steps)
