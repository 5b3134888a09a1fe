"""ZeRO-3 gathers parameters in every pass although the model states would fit at a lower stage.

## Meaning
Stage 3 gathers each layer's parameters in forward and again in backward. Where 4 bytes per parameter (plus the sharded
rest) fit on a device, stages 1 and 2 need none of that. Tiny prefetch and persistence limits make it worse.

## Impact
Forward becomes several times slower on a network that is not fast.

## Diagnosis
Parameters and ranks by arithmetic against the device's memory; communication of the parameter gathers; the limits in
elements.

## Mitigation
Stage 2, or larger prefetch, or partitions inside the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, human_bytes
from ddiag.rulekit.values import as_number, setting, zero_number

RULE = Rule(
    id="DD453",
    root_cause="RC-61",
    needs=(Settings,),
    optional=(Events, JobFacts),
    capture="the ds_config.json, a log that prints the number of parameters, deepspeed.comm.log_summary()",
    symptom="ZeRO-3 is several times slower than ZeRO-2 with the same model",
    evidence="model states fit at stage 2; parameter all-gathers dominate; prefetch or persistence limits tiny",
    applies=lambda signals: (s := signals.get(Settings)) is not None and bool(s.of("ds_config")),
)


@dataclass(frozen=True)
class Limits:
    fits_share: float = 0.5
    """States at stage 2 / device memory: the rest is for activations and buffers."""
    gathers_share: float = 0.4
    """All-gathers / all logged communication time."""
    prefetch_elements: float = 1e6
    """Default 5e7."""
    persistence_elements: float = 1e3
    """Default 1e5: parameters below it are never partitioned."""
    device_bytes: float = 80e9
    """Assumed where no evidence says how much memory a device has."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings, events, facts = signals[Settings], signals.get(Events), signals.get(JobFacts)
    if zero_number(settings, "stage") != 3:
        return
    yield from _tiny_limits(settings, limits)
    if settings.of("ds_config", "zero_optimization.offload_param.device"):
        return
    states = _stage2_bytes(settings, events, facts)
    memory = _device_bytes(events) or limits.device_bytes
    share = _gather_share(events)
    if states is None or states > limits.fits_share * memory:
        return
    slow = share is not None and share >= limits.gathers_share
    yield Finding(
        title=f"ZeRO-3, but the model states fit at stage 2: {human_bytes(states)} of {human_bytes(memory)} per device",
        severity=Severity.WARNING if slow else Severity.INFO,
        confidence=Confidence.HIGH if slow else Confidence.LOW,
        culprits=Culprits(where="zero_optimization.stage"),
        evidence=(
            Evidence(
                "states at stage 2 / device memory", round(states / memory, 3), "", limits.fits_share, "arithmetic"
            ),
            *(
                (Evidence("all-gathers", round(share, 3), "of communication", limits.gathers_share, ""),)
                if share
                else ()
            ),
        ),
        fix=(
            '"stage": 2 (or 1): 2 bytes of parameters per parameter stay on each rank, nothing is gathered in forward',
            'at stage 3: "zero_hpz_partition_size": ranks per node, MiCS, or larger "stage3_prefetch_bucket_size"',
        ),
        verify="20 steps at stage 2: memory fits and the step is shorter",
        why="stage 3 moves about 1.5 times the bytes of stage 2 (forward and backward gathers, and the reduce-scatter)",
        doubt="" if slow else "activations may need the room; the gathers may be hidden",
    )


def _tiny_limits(settings: Settings, limits: Limits) -> Iterator[Finding]:
    for key, least, usual in (
        ("stage3_prefetch_bucket_size", limits.prefetch_elements, "5e7"),
        ("stage3_param_persistence_threshold", limits.persistence_elements, "1e5"),
    ):
        value = zero_number(settings, key)
        if value is None or value >= least or (value == 0 and key.startswith("stage3_param")):
            continue
        yield Finding(
            title=f"{key} is {value:.0f} elements: parameters are gathered one small piece at a time",
            severity=Severity.WARNING,
            confidence=Confidence.HIGH,
            culprits=Culprits(where=f"zero_optimization.{key}"),
            evidence=(Evidence(key, value, "elements", least, "ds_config"),),
            fix=(f'"{key}": {usual} (elements, not bytes)',),
            verify="forward time falls; deepspeed.comm.log_summary() shows fewer, larger gathers",
            why="without prefetch each layer waits for its own gather; small parameters pay a latency each",
        )


def _stage2_bytes(settings: Settings, events: Events | None, facts: JobFacts | None) -> float | None:
    """2 bytes of each parameter, and 14 bytes of it over the ranks."""
    counted = [e.integer("parameters") or 0 for e in events.of("trainer.parameters")] if events is not None else []
    processes = setting(settings, "accelerate", "num_processes")
    world = (facts.world_size if facts is not None else None) or as_number(processes.value if processes else None)
    if not counted or not world:
        return None
    return max(counted) * (2.0 + 14.0 / world)


def _device_bytes(events: Events | None) -> float | None:
    sizes = [e.number("capacity_bytes") for e in events.of("cuda.oom")] if events is not None else []
    return max((size for size in sizes if size), default=None)


def _gather_share(events: Events | None) -> float | None:
    rows = events.of("ds.comm_summary") if events is not None else ()
    total = sum(row.number("total_ms") or 0.0 for row in rows)
    gathers = sum(row.number("total_ms") or 0.0 for row in rows if "all_gather" in row.word("op"))
    return gathers / total if total > 0 else None
