"""Offloaded state travels over the host link while the device waits.

## Meaning
Parameters, optimizer states or activations live in host memory and are copied to the device and back in every step; the
copies are not hidden behind compute.

## Impact
The exposed copy time is added to each step.

## Diagnosis
Host-device copies that look like offloading (same sizes every step, both directions, around optimizer, forward or
backward), and how much of them runs with nothing else on the device.

## Mitigation
Offload less (what memory allows), overlap what stays (prefetch, pinned memory, larger accumulation), or change the
split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import Copies, JobFacts, KernelMix, Memory, Signals, StepBudget
from ddiag.rulekit import (
    Abstain,
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
    id="DD1001",
    root_cause="RC-47",
    needs=(JobFacts, StepBudget, Copies),
    optional=(Memory,),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA, optimizer.step() included",
    symptom="the step is far longer than forward and backward since offloading was switched on",
    evidence="recurring host-device copies of model state with nothing else on the device",
    applies=has_subject,
    explained_by=("DD701", "DD1003", "DD1004"),
    references=("https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training",),
)
FIXES = {
    "optimizer": (
        "DeepSpeed offload_optimizer: {pin_memory: true, ratio: 0.x} (keeps part of the states on the device), or no "
        "optimizer offload if ZeRO-1/2/3 alone fits (16 bytes per parameter / ranks)",
        "more gradient accumulation: the optimizer's copies are then paid once per larger batch",
    ),
    "parameters": (
        "keep parameters on the device: ZeRO-3 or FSDP without offload if the shard fits (2 bytes per parameter / "
        "ranks); FSDP2: drop CPUOffloadPolicy, FSDP1: CPUOffload(offload_params=False)",
        "prefetch further ahead: DeepSpeed stage3_prefetch_bucket_size (counts elements), stage3_max_live_parameters",
    ),
    "activations": (
        "offload fewer activations, or recompute cheap ones instead (selective checkpointing): compute is often "
        "cheaper than the host link",
        "overlap: torch.autograd.graph.save_on_cpu(pin_memory=True), or activation offload on a stream of its own "
        "(torchtune activation_offloading.OffloadActivations)",
    ),
}


@dataclass(frozen=True)
class Limits:
    exposed_share: float = 0.05
    """Exposed offload copies / step for a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    exposed_ms: float = 1.0
    """Below this nothing is won."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, copies = signals[JobFacts], signals[StepBudget], signals[Copies]
    exposed_ms = copies.offload_exposed_ms
    share = exposed_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if not copies.offload or exposed_ms < limits.exposed_ms or share < limits.exposed_share:
        return
    what = copies.offload if copies.offload in FIXES else "model state"
    memory = signals.get(Memory)
    room: tuple[Evidence, ...] = ()
    if memory is not None and memory.peak_share is not None:
        room = (Evidence("peak memory", round(memory.peak_share, 4), "of capacity", None, "worst rank"),)
    yield Finding(
        title=f"offloaded {what} leaves the device waiting for copies for {exposed_ms:.1f} ms per step "
        f"({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.exposed_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts),
        culprits=Culprits(where=f"{what} offload"),
        evidence=(
            Evidence("exposed copies", round(exposed_ms, 3), "ms/step", limits.exposed_ms, over_steps(budget)),
            Evidence("exposed copies", round(share, 4), "of step", limits.exposed_share, "nothing else on the device"),
            Evidence("copied", human_bytes(copies.bytes_per_step), "per step", None, "host to device and back"),
            *_rates(copies),
            Evidence("host link busy", round(copies.link_busy_share, 4), "of step", None, "busier direction"),
            *room,
        ),
        fix=(
            *FIXES.get(copies.offload, FIXES["optimizer"] + FIXES["parameters"]),
            "pin host memory (pin_memory: true; DeepSpeed's default was false until 0.19.5) and bind ranks to the CPU "
            "of their device: deepspeed --bind_cores_to_rank, torchrun --numa-binding=node",
        ),
        verify="run 20 steps without offload at a smaller micro-batch and compare; `ddiag analyze NEW_TRACES` must "
        f"show exposed copies below {limits.exposed_share:.0%} of the step",
        cost=step_cost(exposed_ms, budget, facts),
        why="the same amounts are copied in every step, and nothing else runs on the device meanwhile",
        doubt="large inputs copied every step look similar; their copies belong to the loader, not to offloading",
    )


def _rates(copies: Copies) -> tuple[Evidence, ...]:
    """Achieved rate of each direction that is known."""
    known = (("host to device", copies.h2d_gbps), ("device to host", copies.d2h_gbps))
    return tuple(
        Evidence(label, round(gbps, 2), "GB/s", None, "large copies") for label, gbps in known if gbps is not None
    )
