"""The link between host and device is busy most of the step.

## Meaning
More is copied per step than the link can carry beside the compute: offloaded state, raw inputs, outputs taken to the
host. No overlap helps any more.

## Impact
The step cannot be shorter than bytes / link rate.

## Diagnosis
Share of the step in which the busier direction copies, with the rate it reaches. x16 PCIe carries 15.8 (Gen 3), 31.5
(Gen 4) or 63 GB/s (Gen 5) per direction, of which 80-88 % is reached in practice; about 7-8 GB/s at full load is the
sign of a degraded link (x8 Gen 3 or x4 Gen 4; see DD701) or of pageable memory (DD1003).

## Mitigation
Move fewer bytes: offload less, send inputs in their compact form, accumulate gradients before they travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import Copies, JobFacts, KernelMix, Signals, StepBudget
from ddiag.rulekit import (
    Abstain,
    Confidence,
    Culprits,
    Evidence,
    Finding,
    Rule,
    View,
    human_bytes,
    step_cost,
)
from ddiag.rulekit.quality import confidence_for, over_steps, severity_over_steps


def has_subject(signals: Signals) -> bool:
    """A device, and copies to see: kernels without any leave nothing to record."""
    facts = signals.get(JobFacts)
    if facts is not None and facts.device_kind == "cpu":
        return False
    return signals.has(Copies) or not signals.has(KernelMix)


RULE = Rule(
    id="DD1004",
    root_cause="RC-98",
    needs=(JobFacts, StepBudget, Copies),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA",
    symptom="nvidia-smi dmon shows full PCIe traffic all the time; the step grows with the bytes offloaded",
    evidence="the host link busy most of the step, with copies exposed",
    applies=has_subject,
    explained_by=("DD701", "DD1003"),
)


@dataclass(frozen=True)
class Limits:
    busy_share: float = 0.7
    """Busier direction / step: above it, overlap cannot hide the rest."""
    exposed_share: float = 0.05
    """Exposed copies / step: a busy link that compute hides costs nothing."""
    critical_share: float = 0.25
    """Exposed share from which it is the first thing to fix."""
    exposed_ms: float = 1.0
    """Below this nothing is won."""
    degraded_gbps: float = 9.0
    """Rate at full load below which the link itself is suspect (x8 Gen 3 reaches 7.9 at most)."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, copies = signals[JobFacts], signals[StepBudget], signals[Copies]
    share = copies.exposed_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if copies.link_busy_share < limits.busy_share or copies.exposed_ms < limits.exposed_ms:
        return
    if share < limits.exposed_share:
        return
    rates = [rate for rate in (copies.h2d_gbps, copies.d2h_gbps) if rate is not None]
    slow = bool(rates) and max(rates) < limits.degraded_gbps
    at = f" at {max(rates):.1f} GB/s" if rates else ""
    yield Finding(
        title=f"host link busy for {copies.link_busy_share:.0%} of the step{at}; {copies.exposed_ms:.1f} ms per step "
        "of copies stay exposed",
        severity=severity_over_steps(share, budget, warning=limits.exposed_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, at_most=Confidence.MEDIUM if slow else Confidence.HIGH),
        culprits=Culprits(where="host link"),
        evidence=(
            Evidence(
                "host link busy", round(copies.link_busy_share, 4), "of step", limits.busy_share, over_steps(budget)
            ),
            Evidence(
                "exposed copies", round(copies.exposed_ms, 3), "ms/step", limits.exposed_ms, "device otherwise idle"
            ),
            Evidence("exposed copies", round(share, 4), "of step", limits.exposed_share, "exposed / median step"),
            Evidence("copied", human_bytes(copies.bytes_per_step), "per step", None, "both directions"),
            *(
                Evidence("best rate", round(max(rates), 2), "GB/s", limits.degraded_gbps, "large copies")
                for _ in rates[:1]
            ),
        ),
        fix=_fixes(copies, slow=slow),
        verify="`ddiag analyze NEW_TRACES`: host link busy below "
        f"{limits.busy_share:.0%} of the step and exposed copies below {limits.exposed_share:.0%}",
        cost=step_cost(copies.exposed_ms, budget, facts),
        why="the busier direction copies most of the step, so what is exposed cannot be hidden by better overlap",
        doubt="another process or a second device behind the same switch shares the link and is not in these traces",
    )


def _fixes(copies: Copies, *, slow: bool) -> tuple[str, ...]:
    steps = []
    if slow:
        steps.append(
            "check the link under load first: nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.gen.max,"
            "pcie.link.width.current,pcie.link.width.max --format=csv (idle links save power and read Gen 1)"
        )
    if copies.offload:
        steps.append(
            "offload less: DeepSpeed offload_optimizer.ratio < 1 or ZeRO-3 without offload_param; FSDP2 without "
            "CPUOffloadPolicy; more gradient accumulation, so that state travels less often"
        )
    steps.append("send inputs compactly (uint8 images, int32 token ids) and convert, crop and augment on the device")
    steps.append("do not take activations or gradients to the host in the loop (logging, clipping, NaN checks)")
    return tuple(steps)
