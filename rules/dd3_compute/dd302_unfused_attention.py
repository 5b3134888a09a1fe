"""Attention runs as separate matrix products and a softmax although a fused kernel would serve.

## Meaning
The score matrix (sequence x sequence per head) is written to memory and read back several times instead of being kept
on chip, as FlashAttention and memory-efficient attention do.

## Impact
Time and memory grow with the square of the sequence length; a fused kernel is about twice as fast and needs no score
matrix.

## Diagnosis
Softmax between two batched matrix products, or the math back end of `scaled_dot_product_attention`.

## Mitigation
Call `scaled_dot_product_attention` in bf16 or fp16 with `is_causal=True` instead of a dense mask.
Fewer key/value heads shrink attention as well, which is a choice of the model: MQA has one (`num_key_value_heads=1`),
GQA one for each group of query heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import Attention, JobFacts, KernelMix, Precision, Signals, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, step_cost
from ddiag.rulekit.quality import confidence_for, over_steps, severity_over_steps


def has_subject(signals: Signals) -> bool:
    """A device, and attention to see: kernels without any are a model without it."""
    facts = signals.get(JobFacts)
    if facts is not None and facts.device_kind == "cpu":
        return False
    return signals.has(Attention) or not signals.has(KernelMix)


RULE = Rule(
    id="DD302",
    root_cause="RC-89",
    needs=(JobFacts, StepBudget, Attention),
    optional=(Precision,),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA (record_shapes=True adds sequence lengths)",
    symptom="long sequences are slow and run out of memory; softmax and bmm kernels are near the top of the profile",
    evidence="attention as bmm, softmax, bmm, or _scaled_dot_product_attention_math",
    applies=has_subject,
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    ),
)
BEFORE_AMPERE = re.compile(r"\b(V100|T4|P100|P40|GP100|RTX (20|TITAN)|TITAN)", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    unfused_share: float = 0.05
    """Unfused attention / step for a finding."""
    warning_share: float = 0.10
    """From here it is a warning: a fused kernel then saves 5 % or more."""
    critical_share: float = 0.50
    """From here attention alone rules the step."""
    unfused_ms: float = 1.0
    """Below this a fused kernel changes nothing one could measure."""
    gain: float = 0.5
    """Part of unfused attention that a fused kernel saves (2x; FlashAttention reports 2-4x)."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, attention = signals[JobFacts], signals[StepBudget], signals[Attention]
    share = attention.unfused_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if not budget.on_device or attention.unfused_ms < limits.unfused_ms or share < limits.unfused_share:
        return
    gain_ms = attention.unfused_ms * limits.gain
    yield Finding(
        title=f"attention runs unfused ({attention.evidence}): {attention.unfused_ms:.1f} ms per step "
        f"({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.warning_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts),
        culprits=Culprits(where=attention.evidence or None),
        evidence=(
            Evidence(
                "unfused attention", round(attention.unfused_ms, 3), "ms/step", limits.unfused_ms, over_steps(budget)
            ),
            Evidence("unfused attention", round(share, 4), "of step", limits.unfused_share, "time / median step"),
            Evidence(
                "fused attention", round(attention.fused_ms, 3), "ms/step", None, "flash or memory-efficient kernels"
            ),
            Evidence("attention calls", round(attention.calls_per_step, 1), "per step", None, "forward and backward"),
            Evidence("seen as", attention.evidence, "", None, "operator or kernel"),
        ),
        fix=_fixes(facts, signals.get(Precision)),
        verify="under `with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION):` the call raises and says why "
        "when it cannot be fused; `ddiag analyze NEW_TRACES` must show no unfused attention",
        cost=step_cost(gain_ms, budget, facts),
        why=f"the score matrix is materialised; a fused kernel would save about {limits.gain:.0%} of this time",
        doubt="a head size above 256, an additive bias with gradient, or returned attention weights cannot be fused by "
        "flash kernels (the memory-efficient kernel or FlexAttention may serve)",
    )


def _fixes(facts: JobFacts, precision: Precision | None) -> tuple[str, ...]:
    old = any(BEFORE_AMPERE.search(name) for name in facts.device_names)
    steps = [
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True); Hugging Face: "
        'from_pretrained(attn_implementation="sdpa"'
        + (")" if old else ' or "flash_attention_2")')
        + " and output_attentions=False",
    ]
    if precision is not None and precision.fp32_share > 0.5:
        steps.append("flash kernels take only 16-bit inputs, and this job multiplies in fp32: use torch.autocast")
    steps.append("replace a dense attn_mask by is_causal=True, or by FlexAttention / variable-length packing")
    if old:
        steps.append("this device predates flash kernels (compute capability 8.0+): the memory-efficient kernel serves")
    return tuple(steps)
