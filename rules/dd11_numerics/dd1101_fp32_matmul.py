"""Matrix products run in full fp32 on a device with tensor cores.

## Meaning
Inputs are fp32 and TF32 is off (PyTorch's default for matrix products since 1.12), so the multiplications use the
ordinary cores.

## Impact
Tensor cores are 2-4 times faster in practice (8-16 times on paper), and 16-bit activations halve memory.

## Diagnosis
The number format in the names of matmul and convolution kernels, weighted by time, and whether the device has tensor
cores at all.

## Mitigation
bf16 autocast; TF32 as the one-line step; fp16 with a gradient scaler where the device knows neither (V100, T4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import JobFacts, KernelMix, Precision, Signals, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, Severity, View, step_cost
from ddiag.rulekit.quality import confidence_for, over_steps


def has_subject(signals: Signals) -> bool:
    """A device, and matrix products to see: kernels without any leave nothing to record."""
    facts = signals.get(JobFacts)
    if facts is not None and facts.device_kind == "cpu":
        return False
    return signals.has(Precision) or not signals.has(KernelMix)


RULE = Rule(
    id="DD1101",
    root_cause="RC-99",
    needs=(JobFacts, StepBudget, Precision),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA",
    symptom="far below the device's peak FLOPS although it is always busy; sgemm kernels lead the profile",
    evidence="fp32 kernels in most of the matmul time, on a device with tensor cores",
    applies=has_subject,
    references=(
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices",
    ),
)
FP16_ONLY = re.compile(r"V100|\bT4\b|RTX 20\d\d|TITAN (V|RTX)|Quadro RTX|T4G", re.IGNORECASE)
"""Volta and Turing: tensor cores without TF32 and bf16."""


@dataclass(frozen=True)
class Limits:
    fp32_share: float = 0.5
    """fp32 / matmul time for a finding; a few fp32 products (losses, norms) are deliberate."""
    matmul_share: float = 0.05
    """fp32 matmul time / step below which nothing is won."""
    fp32_ms: float = 1.0
    """fp32 matmul time per step below which nothing is won."""
    gain: float = 0.5
    """Part of it that tensor cores save (2x, the low end of what is seen)."""
    warning_share: float = 0.05
    """Gain / step for a warning; never more than that, because fp32 may be meant."""
    unknown_share: float = 0.5
    """Matmul time whose format is unknown, above which nothing is said."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, precision = signals[JobFacts], signals[StepBudget], signals[Precision]
    if not budget.on_device or budget.step_ms <= 0 or precision.tensor_cores is False:
        return
    if precision.unknown_share > limits.unknown_share:
        if precision.matmul_ms >= limits.matmul_share * budget.step_ms:
            yield Abstain(
                f"{precision.unknown_share:.0%} of matmul time is in kernels whose names do not tell the number format",
                "profile with record_shapes=True: operator input types then tell it",
            )
        return
    fp32_ms = precision.matmul_ms * precision.fp32_share
    step_share = fp32_ms / budget.step_ms
    if precision.fp32_share < limits.fp32_share or fp32_ms < limits.fp32_ms or step_share < limits.matmul_share:
        return
    if precision.tensor_cores is None:
        yield Abstain(
            "matrix products run in fp32, but the evidence does not say which device this is",
            "record deviceProperties (torch.profiler writes them when a device was used)",
        )
        return
    gain_ms = fp32_ms * limits.gain
    share = gain_ms / budget.step_ms
    device = facts.device_names[0] if facts.device_names else "the device"
    yield Finding(
        title=f"{precision.fp32_share:.0%} of matmul time runs in fp32 on {device}: {fp32_ms:.1f} ms per step, of "
        f"which tensor cores would save {gain_ms:.1f} ms or more",
        severity=Severity.WARNING if share >= limits.warning_share else Severity.INFO,
        confidence=confidence_for(budget, facts),
        culprits=Culprits(where=_example(precision)),
        evidence=(
            Evidence("fp32", round(precision.fp32_share, 4), "of matmul time", limits.fp32_share, "kernel names"),
            Evidence("fp32 matmul", round(fp32_ms, 3), "ms/step", limits.fp32_ms, over_steps(budget)),
            Evidence("fp32 matmul", round(step_share, 4), "of step", limits.matmul_share, "time / median step"),
            Evidence("possible gain", round(gain_ms, 3), "ms/step", None, f"{limits.gain:.0%} of it"),
            Evidence("device", device, "", None, "has tensor cores"),
            Evidence("example", _example(precision) or "", "", None, "costliest fp32 kernel"),
        ),
        fix=_fixes(facts, precision),
        verify="`ddiag analyze NEW_TRACES`: fp32 share of matmul time near 0 and a shorter step; compare the loss "
        "curve over some hundred steps",
        cost=step_cost(gain_ms, budget, facts),
        why="the kernels' names say fp32, and this device multiplies 16-bit (or TF32) inputs on tensor cores",
        doubt="some models need fp32 products (solvers, some science codes): check the loss before keeping the change",
    )


def _example(precision: Precision) -> str | None:
    rows = precision.table.filter(pl.col("precision") == "fp32").sort("ms_per_step", descending=True)
    return str(rows["example"][0])[:120] if rows.height else None


def _fixes(facts: JobFacts, precision: Precision) -> tuple[str, ...]:
    old = any(FP16_ONLY.search(name) for name in facts.device_names)
    if precision.bf16 is False or (precision.bf16 is None and old):
        return (
            'torch.autocast("cuda", dtype=torch.float16) with torch.amp.GradScaler("cuda") (FSDP1: '
            "ShardedGradScaler): this "
            "device has no TF32 and no bf16 tensor cores",
            "Hugging Face: fp16=True; Lightning: precision='16-mixed'; DeepSpeed: fp16.enabled: true",
        )
    tf32 = (
        "one line, still fp32 tensors: torch.set_float32_matmul_precision('high') (TF32 products; 2.9+ also "
        "torch.backends.cuda.matmul.fp32_precision = 'tf32')"
    )
    bf16 = (
        'torch.autocast("cuda", dtype=torch.bfloat16) around forward and loss (FSDP2: MixedPrecisionPolicy(param_dtype='
        "torch.bfloat16, reduce_dtype=torch.float32); Hugging Face: bf16=True; DeepSpeed: bf16.enabled: true)"
    )
    has_tf32 = facts.device_kind == "cuda" if precision.tf32 is None else precision.tf32
    return (bf16, tf32) if has_tf32 else (bf16,)
