"""The link between host and device is busy most of the step.

## Meaning
More is copied per step than the link can carry beside the compute: offloaded state, raw inputs, outputs taken to the
host. No overlap helps any more.

## Impact
The step cannot be shorter than bytes / link rate.

## Diagnosis
Share of the step in which the busier direction copies, with the rate it reaches; or what the device counts on its link
while the steps run, against what a link of that generation and width carries. x16 PCIe carries 15.8 (Gen 3), 31.5
(Gen 4) or 63 GB/s (Gen 5) per direction, of which 80-88 % is reached in practice; about 7-8 GB/s at full load is the
sign of a degraded link (x8 Gen 3 or x4 Gen 4; see DD701) or of pageable memory (DD1003).

## Mitigation
Move fewer bytes: offload less, send inputs in their compact form, accumulate gradients before they travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddiag.model.signals import Copies, JobFacts, KernelMix, Signals, StepBudget
from ddiag.model.signals_sampled import HostLink
from ddiag.rulekit import (
    Abstain,
    Confidence,
    Culprits,
    Evidence,
    Finding,
    Rule,
    Severity,
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
    return signals.has(Copies) or signals.has(HostLink) or not signals.has(KernelMix)


RULE = Rule(
    id="DD1004",
    root_cause="RC-98",
    needs=(JobFacts, StepBudget),
    optional=(Copies, HostLink),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA; or ddiag run (it samples NVML)",
    symptom="nvidia-smi dmon shows full PCIe traffic all the time; the step grows with the bytes offloaded",
    evidence="the host link busy most of the step, with copies exposed",
    applies=has_subject,
    explained_by=("DD701", "DD703", "DD1003"),
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
    reached: float = 0.8
    """Part of a link's nominal rate that transfers reach."""
    util: float = 85.0
    """% of the time with a kernel running from which a busy link is hidden behind compute."""
    critical_busy: float = 0.9
    """Busy share from which the link alone sets the pace."""
    samples: int = 5
    """Of the device while the steps ran."""
    explained: float = 0.5
    """Bytes known to be copied / bytes counted on the link, from which copies fill it."""
    nvlink_gbps: float = 1.0
    """Traffic over NVLink that shows where collectives travel."""
    degraded_gbps: float = 9.0
    """Rate at full load below which the link itself is suspect (x8 Gen 3 reaches 7.9 at most)."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, copies = signals[JobFacts], signals[StepBudget], signals.get(Copies)
    link = signals.get(HostLink)
    if copies is not None and (link is None or budget.on_device):
        yield from _copied(facts, budget, copies, limits)
    elif link is not None:
        yield from _counted(link, facts, budget, copies, limits)
    else:
        yield Abstain("neither copies nor the traffic of a device's link were recorded", RULE.capture)


def _copied(facts: JobFacts, budget: StepBudget, copies: Copies, limits: Limits) -> Iterator[Finding]:
    """From the copies that a trace shows."""
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
        confidence=confidence_for(
            budget, facts, at_most=Confidence.HIGH if budget.on_device and not slow else Confidence.MEDIUM
        ),
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
        doubt="another process or a second device behind the same switch shares the link and is not in these traces"
        if budget.on_device
        else "times are those of the host in its copies, which may hold casts as well; the link was not counted",
    )


def _counted(
    link: HostLink, facts: JobFacts, budget: StepBudget, copies: Copies | None, limits: Limits
) -> Iterator[Finding | Abstain]:
    """From what the devices count on their links."""
    rows = [{**row, "busy": _busy(row, limits)} for row in link.table.iter_rows(named=True)]
    rows = [row for row in rows if row["samples"] >= limits.samples and row["busy"] >= limits.busy_share]
    rows = [row for row in rows if row["util"] is not None and row["util"] <= limits.util]
    if not rows:
        return
    worst = max(rows, key=lambda row: float(row["busy"]))
    names = ", ".join(f"gpu{row['device']}" for row in rows[:4])
    counted = (worst["to_device_gbps"] + worst["from_device_gbps"]) * budget.step_ms * 1e6
    known = copies.bytes_per_step if copies is not None else 0
    copied = known >= limits.explained * counted > 0
    if not copied and _may_be_collectives(worst, facts, limits):
        yield Abstain(
            f"the host link of {names} is {worst['busy']:.0%} busy, but the recording does not tell copies from "
            "collectives, which use it as well where there is no NVLink",
            "profile 5+ steps with torch.profiler: ddiag run --profile-steps A:B",
        )
        return
    ranks = tuple(sorted({rank for row in rows for rank in row["ranks"] or ()}))
    best = max(worst["to_device_gbps"], worst["from_device_gbps"])
    way = "to the device" if worst["to_device_gbps"] >= worst["from_device_gbps"] else "to the host"
    critical = worst["busy"] >= limits.critical_busy
    yield Finding(
        title=f"the host link of {names} is full: {best:.3g} GB/s {way} all the time, {worst['busy']:.0%} of what it "
        f"can reach, while the device computes {worst['util']:.0f}% of it",
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        confidence=Confidence.HIGH if copied else Confidence.MEDIUM,
        culprits=Culprits(
            ranks=ranks if len(ranks) < len(facts.ranks) else (),
            hosts=tuple(sorted({row["host"] for row in rows if row["host"]})),
            devices=tuple(f"gpu{row['device']}" for row in rows),
            where="host link",
        ),
        evidence=tuple(_evidence(worst, counted, known, limits)),
        fix=_fixes(copies, slow=False),
        verify=f"`ddiag run` again: less than {limits.busy_share:.0%} of what the link can reach, and a busier device",
        why="the device counts what crosses its link; at this rate a step cannot take less time than it does",
        doubt="" if copied else "what is copied is not recorded: inputs, offloaded state, or outputs taken to the host",
    )


def _busy(row: Mapping[str, Any], limits: Limits) -> float:
    """Of what the link can reach in its busier direction."""
    best = max(row["to_device_gbps"], row["from_device_gbps"])
    return min(float(best / (row["link_gbps"] * limits.reached)), 1.0) if row["link_gbps"] else 0.0


def _may_be_collectives(row: Mapping[str, Any], facts: JobFacts, limits: Limits) -> bool:
    """Several ranks, and nothing shows that they talk over NVLink."""
    return len(facts.ranks) > 1 and (row["nvlink_gbps"] or 0.0) < limits.nvlink_gbps


def _evidence(row: Mapping[str, Any], counted: float, known: int, limits: Limits) -> Iterator[Evidence]:
    source = f"{row['samples']} samples of gpu{row['device']}"
    yield Evidence("host link busy", round(row["busy"], 4), "of what it can reach", limits.busy_share, source)
    yield Evidence("to the device", round(row["to_device_gbps"], 2), "GB/s", None, source)
    yield Evidence("to the host", round(row["from_device_gbps"], 2), "GB/s", None, source)
    yield Evidence(
        "such a link carries", round(row["link_gbps"], 1), "GB/s", None,
        f"Gen{row['pcie_gen']:.0f} x{row['pcie_width']:.0f}, {limits.reached:.0%} of it is reached",
    )  # fmt: skip
    yield Evidence("device computes", round(row["util"], 1), "% of the time", limits.util, source)
    yield Evidence("on the link", human_bytes(counted), "per step", None, "both directions, rate x step time")
    if known:
        yield Evidence("of it known to be offloading", human_bytes(known), "per step", None, "recorded copies")


def _fixes(copies: Copies | None, *, slow: bool) -> tuple[str, ...]:
    steps = []
    if slow:
        steps.append(
            "check the link under load first: nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.gen.max,"
            "pcie.link.width.current,pcie.link.width.max --format=csv (idle links save power and read Gen 1)"
        )
    if copies is not None and copies.offload:
        steps.append(
            "offload less: DeepSpeed offload_optimizer.ratio < 1 or ZeRO-3 without offload_param; FSDP2 without "
            "CPUOffloadPolicy; more gradient accumulation, so that state travels less often"
        )
    steps.append("send inputs compactly (uint8 images, int32 token ids) and convert, crop and augment on the device")
    steps.append("do not take activations or gradients to the host in the loop (logging, clipping, NaN checks)")
    return tuple(steps)
