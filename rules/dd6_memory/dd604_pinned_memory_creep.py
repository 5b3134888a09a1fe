"""Page-locked host memory grows from step to step.

## Meaning
Copies between host and device are fast from pinned memory, and torch keeps what it pinned in a pool. Buffers of
ever-new sizes, or pinned tensors that somebody keeps, make the pool grow: it never gives anything back.

## Impact
None at first; later the host has nothing left that can be paged, swaps, and kills the job for want of memory.

## Diagnosis
The size of torch's pool of pinned memory over the run: its slope after warm-up, and whether it rises again and again.

## Mitigation
Few sizes of buffers (pad batches), no references to pinned batches, offloading with buffers of fixed size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_recorded import PinnedMemory
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, human_bytes

RULE = Rule(
    id="DD604",
    root_cause="RC-76",
    needs=(JobFacts, PinnedMemory),
    capture="ddiag run with torch 2.9 or later on a device, for some minutes",
    symptom="the host runs out of memory after hours although no process of the job seems large",
    evidence="torch's pool of pinned memory rises look after look",
    applies=lambda signals: signals.has(PinnedMemory),
)


@dataclass(frozen=True)
class Limits:
    growth_bytes: float = 65_536.0
    """Per step."""
    total_share: float = 0.1
    """It must have grown by this part of what is in use: pools level off."""
    rising: float = 0.3
    """Part of the looks, ten seconds apart, that saw more than the one before: a pool grows in bursts."""
    soon_steps: float = 20_000.0
    """Steps until nothing is free above which it is only information."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    pinned = signals[PinnedMemory]
    worst = pinned.table.sort("growth_bytes_per_step", "rank", descending=[True, False]).row(0, named=True)
    growth = worst["growth_bytes_per_step"]
    grown = growth * worst["steps"]
    if (
        growth < limits.growth_bytes
        or worst["rising"] < limits.rising
        or grown < limits.total_share * worst["last_bytes"]
    ):
        return
    every = pinned.table.filter(pinned.table["growth_bytes_per_step"] >= limits.growth_bytes)
    left = pinned.free_bytes / (growth * every.height) if pinned.free_bytes is not None else None
    until = f": nothing is left on the host in about {left:,.0f} steps" if left is not None else ""
    facts = signals[JobFacts]
    some = 0 < every.height < len(facts.ranks)
    yield Finding(
        title=f"pinned host memory grows by {human_bytes(growth)} per step and rank{until}",
        severity=Severity.WARNING if left is not None and left <= limits.soon_steps else Severity.INFO,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(
            ranks=tuple(sorted(every["rank"].to_list())) if some else (), where="torch's pool of pinned memory"
        ),
        evidence=(
            Evidence(
                "growth", round(growth), "bytes/step", limits.growth_bytes, f"rank {worst['rank']}, after warm-up"
            ),
            Evidence(
                "looks that saw more", round(worst["rising"], 3), "of looks", limits.rising, f"{worst['looks']} looks"
            ),
            Evidence("pinned at last", worst["last_bytes"], "bytes", None, f"rank {worst['rank']}"),
        ),
        fix=(
            "pad batches to a few sizes: every new size pins a new block (rounded up to a power of two)",
            "drop references to pinned batches once they are copied; pin_memory=True in one place only",
            "torch 2.7+: PYTORCH_CUDA_ALLOC_CONF=pinned_use_background_threads:True does not shrink the pool; "
            "torch._C._host_emptyCache() gives it back",
        ),
        verify="`ddiag run` again: pinned memory stays level after the first minutes",
        why="torch's own counter of its pool rises over the whole run",
        doubt="a data set whose longest samples come late grows the pool once more, and then it stays level",
    )
