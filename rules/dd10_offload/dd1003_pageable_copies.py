"""Copies between host and device use ordinary (pageable) memory.

## Meaning
The driver cannot transfer pageable memory directly: it copies it into a pinned buffer piece by piece, on the CPU, and
`non_blocking=True` has no effect.

## Impact
Half the bandwidth or less, a blocked host thread, and no overlap with compute.

## Diagnosis
The kind of memory that the profiler records for each copy, its rate, and how much of it runs with an idle device; in a
recording, the offload settings that DeepSpeed took and the host's time in its copies.

## Mitigation
Pin the host side: `pin_memory=True` in the loader, pinned buffers for everything that is copied again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from ddiag.model.signals import Copies, JobFacts, KernelMix, Signals, StepBudget
from ddiag.model.signals_incident import Settings
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
from ddiag.rulekit.values import offload_pinned


def has_subject(signals: Signals) -> bool:
    """A device, and copies to see: kernels without any leave nothing to record."""
    facts = signals.get(JobFacts)
    if facts is not None and facts.device_kind == "cpu":
        return False
    return signals.has(Copies) or not signals.has(KernelMix)


RULE = Rule(
    id="DD1003",
    root_cause="RC-97",
    needs=(JobFacts, StepBudget, Copies),
    optional=(Settings,),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA, on NVIDIA devices (copies then carry "
    "'Pageable' or 'Pinned')",
    symptom="host-to-device copies are slow and block the training thread although non_blocking=True is set",
    evidence="copies marked Pageable with nothing else on the device",
    applies=has_subject,
    references=("https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",),
)


@dataclass(frozen=True)
class Limits:
    pageable_share: float = 0.5
    """Pageable / all host-device bytes for a finding."""
    exposed_share: float = 0.02
    """Exposed pageable copies / step for a finding."""
    warning_share: float = 0.05
    """From here it is a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    exposed_ms: float = 0.5
    """Below this pinning wins nothing (single scalars are always pageable)."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, copies = signals[JobFacts], signals[StepBudget], signals[Copies]
    if budget.step_ms <= 0:
        return
    if copies.pageable_share is None:
        pinned = offload_pinned(signals.get(Settings)) if copies.offload else {}
        if not all(pinned.values()):
            yield from _configured(facts, budget, copies, limits, pinned)
        elif (
            not pinned
            and copies.exposed_ms >= limits.exposed_ms
            and copies.exposed_ms >= limits.warning_share * budget.step_ms
        ):
            yield Abstain(
                f"copies take {copies.exposed_ms:.1f} ms per step, but the trace does not say whether they are pinned",
                "check pin_memory=True of the DataLoader by hand, or profile on an NVIDIA device",
            )
        return
    exposed_ms = copies.pageable_exposed_ms
    share = exposed_ms / budget.step_ms
    if copies.pageable_share < limits.pageable_share or exposed_ms < limits.exposed_ms or share < limits.exposed_share:
        return
    yield Finding(
        title=f"{copies.pageable_share:.0%} of host-device bytes use pageable memory: copies cost {exposed_ms:.1f} ms "
        f"per step ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.warning_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts),
        culprits=Culprits(where="pageable host memory"),
        evidence=(
            Evidence(
                "pageable",
                round(copies.pageable_share, 4),
                "of bytes",
                limits.pageable_share,
                "copy kinds in the trace",
            ),
            Evidence("exposed pageable copies", round(exposed_ms, 3), "ms/step", limits.exposed_ms, over_steps(budget)),
            Evidence(
                "exposed pageable copies", round(share, 4), "of step", limits.exposed_share, "device otherwise idle"
            ),
            Evidence("copied", human_bytes(copies.bytes_per_step), "per step", None, "both directions"),
            *_rates(copies.table),
        ),
        fix=(
            "DataLoader(pin_memory=True) and batch.to(device, non_blocking=True) (custom batch types need a "
            "pin_memory() method)",
            "reuse pinned buffers for own copies: torch.empty(…, pin_memory=True) once, then copy_(…, "
            "non_blocking=True)",
            "DeepSpeed: offload_optimizer.pin_memory and offload_param.pin_memory: true (default false until 0.19.5); "
            "FSDP2: CPUOffloadPolicy(pin_memory=True)",
        ),
        verify="`ddiag analyze NEW_TRACES`: pageable share near 0, and host-to-device rate near the link's (about 25 "
        "GB/s with PCIe 4 x16, 50 GB/s with PCIe 5 x16)",
        cost=step_cost(exposed_ms, budget, facts),
        why="the profiler marks these copies as pageable, and nothing else runs on the device during them",
        doubt="pinning costs host memory that cannot be swapped: leave room on hosts that are short of it",
    )


def _configured(
    facts: JobFacts, budget: StepBudget, copies: Copies, limits: Limits, pinned: Mapping[str, bool]
) -> Iterator[Finding]:
    """The host blocks in the copies of offloaded state that its configuration leaves pageable."""
    share = copies.offload_exposed_ms / budget.step_ms
    if copies.offload_exposed_ms < limits.exposed_ms or share < limits.exposed_share:
        return
    loose = [name for name, is_pinned in pinned.items() if not is_pinned]
    yield Finding(
        title=f"offloaded state lies in pageable memory ({', '.join(loose)}.pin_memory is false): its copies take "
        f"{copies.offload_exposed_ms:.1f} ms per step ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.warning_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True, at_most=Confidence.MEDIUM),
        culprits=Culprits(where="pageable host memory"),
        evidence=(
            *(Evidence(f"{name}.pin_memory", "false", "", "true", "DeepSpeed's configuration") for name in loose),
            Evidence(
                "copies",
                round(copies.offload_exposed_ms, 3),
                "ms/step",
                limits.exposed_ms,
                f"host, {over_steps(budget)}",
            ),
            Evidence("copies", round(share, 4), "of step", limits.exposed_share, "time / median step"),
            Evidence("copied", human_bytes(copies.bytes_per_step), "per step", None, "both directions"),
        ),
        fix=tuple(f'"{name}": {{"device": "cpu", "pin_memory": true}} in the ds_config' for name in loose),
        verify="`ddiag run` again with pinned memory: the host's time in copies falls to a half or less",
        cost=step_cost(copies.offload_exposed_ms, budget, facts),
        why="a copy from or to pageable memory holds the host until it is done",
        doubt="pinning costs host memory that cannot be swapped, and does not make the link itself faster",
    )


def _rates(table: pl.DataFrame) -> tuple[Evidence, ...]:
    """Rate of pageable and of pinned copies per direction, as far as known."""
    rows = table.filter(
        pl.col("gbps").is_not_null() & pl.col("pinned").is_not_null() & pl.col("direction").is_in(["h2d", "d2h"])
    )
    return tuple(
        Evidence(
            f"{row['direction'].upper()}, {'pinned' if row['pinned'] else 'pageable'}",
            round(row["gbps"], 2),
            "GB/s",
            None,
            "bytes / copy time",
        )
        for row in rows.sort("direction", "pinned").iter_rows(named=True)
    )
