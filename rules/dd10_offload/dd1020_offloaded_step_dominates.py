"""The optimizer on the CPU takes longer than forward and backward: offload is saturated.

## Meaning
With ZeRO-Offload the gradients travel to the host, the CPU updates the parameters, and the result travels back. When
the CPU has too few cores, memory is pageable, or a rank sits on the wrong NUMA node, the device waits for all of it.

## Impact
The device is busy for a small part of the step.

## Diagnosis
DeepSpeed's wall-clock breakdown: `step_microstep` (and its part `optimizer_step`) against forward and backward; the
offload settings; `pin_memory` (false by default until DeepSpeed 0.19.5).

## Mitigation
Pinned memory, cores bound to ranks, larger accumulation, partial offload, or no offload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events, Metrics, Settings
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import as_flag, median_of, setting

RULE = Rule(
    id="DD1020",
    root_cause="RC-47",
    needs=(Metrics,),
    optional=(Settings, Events),
    capture='a log with "wall_clock_breakdown": true, and the ds_config.json',
    symptom="ZeRO-Offload: the GPU is 10 % busy, the step takes many times forward + backward",
    evidence="step_microstep > forward + backward with optimizer offload or CPU Adam",
    applies=lambda signals: (
        (m := signals.get(Metrics)) is not None
        and not m.table.is_empty()
        and bool(m.table["name"].str.starts_with("ds.").any())
    ),
    references=("https://www.deepspeed.ai/tutorials/zero-offload/",),
)
CPU_OPTIMIZERS = ("DeepSpeedCPUAdam", "DeepSpeedCPUAdagrad", "DeepSpeedCPULion", "ZenFlowCPUAdam")


@dataclass(frozen=True)
class Limits:
    ratio: float = 1.0
    """Optimizer step / (forward + backward) of the same number of micro-steps, from which it is the first thing."""
    warning_ratio: float = 0.5
    step_ms: float = 200.0
    """Below this the update is no matter."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    metrics, settings, events = signals[Metrics], signals.get(Settings), signals.get(Events)
    parts = _parts(metrics, settings)
    if parts is None:
        return
    compute_ms, step_ms, update_ms = parts
    ratio = step_ms / compute_ms if compute_ms > 0 else 0.0
    if ratio < limits.warning_ratio or step_ms < limits.step_ms:
        return
    offload, where = _offloaded(settings, events)
    if not offload:
        yield Abstain(
            f"the optimizer step takes {step_ms:.0f} ms against {compute_ms:.0f} ms of compute, but nothing says "
            f"that it "
            "is offloaded",
            "the ds_config.json, or the log from its beginning (the line 'DeepSpeed Basic Optimizer = …')",
        )
        return
    pinned = setting(settings, "ds_config", "zero_optimization.offload_optimizer.pin_memory")
    pageable = pinned is not None and as_flag(pinned.value) is False
    scalar = events is not None and any(e.word("vector") == "scalar" for e in events.of("ds.optimizer"))
    lost = step_ms / (step_ms + compute_ms)
    yield Finding(
        title=f"the offloaded optimizer takes {step_ms / 1000:.3g} s of each step, forward and backward "
        f"{compute_ms / 1000:.3g} s ({lost:.0%} of the step)",
        severity=Severity.CRITICAL if ratio >= limits.ratio else Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(where=where),
        evidence=tuple(_evidence(step_ms, compute_ms, update_ms, ratio, limits, pageable=pageable)),
        fix=_fixes(pageable=pageable, scalar=scalar),
        verify="wall_clock_breakdown: step_microstep must fall below forward + backward; `taskset -cp PID` of the "
        "ranks "
        "and `numastat -p PID` show cores and memory of their own socket; 20 steps without offload for comparison",
        cost=Cost(ms_per_step=step_ms, step_share=lost),
        why=f"offload to {offload}; the device has nothing to do while the CPU updates"
        + ("; pin_memory is false, so every copy is staged through pageable memory" if pageable else ""),
        doubt="" if update_ms is not None else "the breakdown does not separate the update from the copies",
    )


def _parts(metrics: Metrics, settings: Settings | None) -> tuple[float, float, float | None] | None:
    """(forward + backward, step, the update alone) in ms per optimizer step; None without the breakdown."""
    whole = [median_of(metrics, f"ds.{name}_ms", skip=1) or 0.0 for name in ("fwd", "bwd", "step")]
    if all(whole):
        return whole[0] + whole[1], whole[2], median_of(metrics, "ds.optimizer_step_ms", skip=1)
    found = {name: median_of(metrics, f"ds.{name}_microstep_ms", skip=1) for name in ("fwd", "bwd", "step")}
    forward, backward, step = found["fwd"], found["bwd"], found["step"]
    if forward is None or backward is None or step is None:
        return None
    said = setting(settings, "ds_config", "gradient_accumulation_steps")
    accumulated = int(said.value) if said is not None and said.value.isdigit() else 1
    update = median_of(metrics, "ds.optimizer_step_ms", skip=1)
    return (forward + backward) * max(accumulated, 1), step, update


def _offloaded(settings: Settings | None, events: Events | None) -> tuple[str, str]:
    """(cpu or nvme, the option); empty when nothing says so."""
    device = setting(settings, "ds_config", "zero_optimization.offload_optimizer.device")
    if device is not None and device.value.lower() in ("cpu", "nvme"):
        return device.value.lower(), "zero_optimization.offload_optimizer"
    old = setting(settings, "ds_config", "zero_optimization.cpu_offload")
    if old is not None and as_flag(old.value):
        return "cpu", "zero_optimization.cpu_offload"
    named = [e.word("optimizer") for e in events.of("ds.optimizer")] if events is not None else []
    return ("cpu", "DeepSpeedCPUAdam") if any(name in CPU_OPTIMIZERS for name in named) else ("", "")


def _evidence(
    step_ms: float, compute_ms: float, update_ms: float | None, ratio: float, limits: Limits, *, pageable: bool
) -> Iterator[Evidence]:
    yield Evidence("optimizer step / (forward + backward)", round(ratio, 2), "", limits.ratio, "wall_clock_breakdown")
    yield Evidence("optimizer step", round(step_ms, 1), "ms", limits.step_ms, "step_microstep, median")
    yield Evidence("forward + backward", round(compute_ms, 1), "ms", None, "median")
    if update_ms is not None:
        yield Evidence("of it the update itself", round(update_ms, 1), "ms", None, "optimizer_step, median")
    if pageable:
        yield Evidence("offload_optimizer.pin_memory", "false", "", "true", "ds_config")


def _fixes(*, pageable: bool, scalar: bool) -> tuple[str, ...]:
    first = (
        ('"offload_optimizer": {"device": "cpu", "pin_memory": true} (and the same for offload_param)',)
        if pageable
        else ()
    )
    vector = (
        ("CPU Adam was built without AVX: reinstall with DS_BUILD_CPU_ADAM=1 on this machine's CPU",) if scalar else ()
    )
    return (
        *first,
        *vector,
        "deepspeed --bind_cores_to_rank (or numactl per rank): each rank its own cores, on its GPU's socket",
        "more gradient_accumulation_steps: one update for more compute",
        '"offload_optimizer": {"ratio": 0.5} keeps a part of the states on the device; "super_offload" or "zenflow" '
        "overlap the update",
        "without offload where the states fit: `ddiag plan`, or ZeRO-3 over more ranks",
    )
