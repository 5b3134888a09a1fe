"""Activation checkpointing is on although there is plenty of memory left.

## Meaning
Full activation checkpointing runs each forward pass twice: 25 to 33 % more compute for memory that may not be needed.

## Impact
Every step is a quarter to a third longer.

## Diagnosis
The configuration or arguments, and the largest memory in use that the log prints.

## Mitigation
Selective recomputation, fewer checkpointed layers, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Setting
from ddiag.model.signals_incident import Events, Metrics, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import as_flag, setting

RULE = Rule(
    id="DD320",
    root_cause="RC-65",
    needs=(Settings,),
    optional=(Metrics, Events),
    capture="the configuration, and a log that prints the largest memory in use beside the device's size (torchtitan; "
    "Megatron and DeepSpeed with nvidia-smi)",
    symptom="25 to 33 % slower after activation checkpointing was switched on",
    evidence="checkpointing on, memory in use well below the device's",
    applies=lambda signals: (s := signals.get(Settings)) is not None and _recompute(s) is not None,
)


@dataclass(frozen=True)
class Limits:
    used_share: float = 0.6
    """Largest memory in use / device memory, below which not all of it is needed."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    said, used = _recompute(signals[Settings]), _used_share(signals.get(Metrics), signals.get(Events))
    if said is None or used is None or used > limits.used_share:
        return
    yield Finding(
        title=f"activations are recomputed although only {used:.0%} of the memory is in use",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where=said.key),
        evidence=(
            Evidence(said.key, said.value, "", None, said.source),
            Evidence("largest memory in use", round(used, 3), "of device", limits.used_share, "log"),
        ),
        fix=(
            "selective recomputation: Megatron --recompute-granularity selective, torchtitan activation_checkpoint "
            "mode selective (option 2), torch.utils.checkpoint only on every second block",
            "off, if a test of 20 steps fits: gradient_checkpointing=False",
            "or use the room: a larger micro-batch",
        ),
        verify="step time and largest memory of 20 steps with half of the layers checkpointed",
        why="each checkpointed layer runs its forward pass once more in backward",
        doubt="longer sequences later in the run may need the room",
    )


def _recompute(settings: Settings) -> Setting | None:
    """The setting that switches full recomputation on."""
    flags = (
        setting(settings, "trainer", "gradient_checkpointing"),
        setting(settings, "fsdp", "activation_checkpointing"),
    )
    found = next((one for one in flags if one is not None and as_flag(one.value)), None)
    words = (
        setting(settings, "megatron", "recompute_granularity"),
        setting(settings, "trainer", "activation_checkpoint.mode"),
    )
    return found or next((one for one in words if one is not None and one.value.lower() == "full"), None)


def _used_share(metrics: Metrics | None, events: Events | None) -> float | None:
    """Largest memory in use / device memory, where the log says both."""
    if metrics is None:
        return None
    shares: list[float] = metrics.series("memory.used_pct")["value"].drop_nulls().to_list()
    if shares:
        return max(shares) / 100.0
    sizes = [e.number("capacity_bytes") for e in events.of("cuda.oom")] if events is not None else []
    peaks: list[float] = metrics.series("memory.max_allocated_gb")["value"].drop_nulls().to_list()
    capacity = max((size for size in sizes if size), default=None)
    return max(peaks) * 2**30 / capacity if peaks and capacity else None
