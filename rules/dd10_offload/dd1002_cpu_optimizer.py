"""The optimizer runs on the CPU while the device waits.

## Meaning
With optimizer offload the update is computed on host cores (DeepSpeed CPUAdam, or a plain optimizer over CPU tensors).

## Impact
Its whole duration is added to the step unless the next forward pass can start before it ends.

## Diagnosis
Host time in the CPU optimizer with an idle device, between backward and the next forward.

## Mitigation
A vectorised CPU optimizer bound to enough cores of the right socket, fewer updates, or no offload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import Copies, JobFacts, KernelMix, OptimizerStep, Signals, StepBudget
from ddiag.model.signals_incident import Settings
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps
from ddiag.rulekit.values import as_number, offload_pinned, setting


def has_subject(signals: Signals) -> bool:
    """A device, and copies to see: kernels without any leave nothing to record."""
    facts, copies = signals.get(JobFacts), signals.get(Copies)
    if facts is not None and facts.device_kind == "cpu":
        return copies is not None and copies.cpu_optimizer_ms > 0  # a recording saw an engine that offloads
    return signals.has(Copies) or not signals.has(KernelMix)


RULE = Rule(
    id="DD1002",
    root_cause="RC-47",
    needs=(JobFacts, StepBudget, Copies),
    optional=(OptimizerStep, Settings),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA; DeepSpeed: wall_clock_breakdown: true",
    symptom="the device is idle after every backward pass while a few CPU cores are busy",
    evidence="CPU optimizer operators with an idle device",
    applies=has_subject,
    references=("https://www.deepspeed.ai/tutorials/zero-offload/",),
)


_UNPINNED = (Evidence("offload_optimizer.pin_memory", "false", "", "true", "DeepSpeed's configuration"),)
_PIN = ('"offload_optimizer": {"device": "cpu", "pin_memory": true}: its copies are then not staged by the CPU',)


@dataclass(frozen=True)
class Limits:
    cpu_share: float = 0.05
    """CPU optimizer with an idle device / step for a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    cpu_ms: float = 2.0
    """Below this nothing is won."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, cpu_ms = signals[JobFacts], signals[StepBudget], signals[Copies].cpu_optimizer_ms
    share = cpu_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if cpu_ms < limits.cpu_ms or share < limits.cpu_share:
        return
    update = signals.get(OptimizerStep)
    name = update.name if update is not None and update.name else "the optimizer"
    pageable = not offload_pinned(signals.get(Settings)).get("offload_optimizer", True)
    waits = "it takes" if facts.device_kind == "cpu" else "the device idles"
    yield Finding(
        title=f"{name} runs on the CPU: {waits} {cpu_ms:.1f} ms per step ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.cpu_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(where="CPU optimizer"),
        evidence=(
            Evidence("CPU optimizer", round(cpu_ms, 3), "ms/step", limits.cpu_ms, f"device idle, {over_steps(budget)}"),
            Evidence("CPU optimizer", round(share, 4), "of step", limits.cpu_share, "time / median step"),
            *_threads(signals.get(Settings)),
            *_UNPINNED[:pageable],
        ),
        fix=(
            *_PIN[:pageable],
            "DeepSpeedCPUAdam (built with DS_BUILD_CPU_ADAM=1) instead of torch.optim on CPU tensors, with ranks "
            "bound to cores: deepspeed --bind_cores_to_rank",
            "give each rank its share of cores: OMP_NUM_THREADS = cores of the socket / ranks on it, torchrun "
            "--numa-binding=node",
            'update less often or in part: more gradient accumulation, offload_optimizer.ratio < 1, "super_offload": '
            "true, "
            "or zenflow, which overlaps the update with the next steps",
            "no optimizer offload, if 16 bytes per parameter / ranks fit beside the activations",
        ),
        verify="DeepSpeed wall_clock_breakdown: step_microstep falls below forward + backward; `ddiag analyze "
        f"NEW_TRACES` must show the CPU optimizer below {limits.cpu_share:.0%} of the step",
        cost=step_cost(cpu_ms, budget, facts),
        why="CPU optimizer operators run on the host while nothing runs on the device",
        doubt=doubts(facts, "with very few steps recorded, an occasional update weighs too much"),
    )


def _threads(settings: Settings | None) -> tuple[Evidence, ...]:
    """How many threads torch began with: the update has no more unless the script gave it some."""
    threads = setting(settings, "recorded", "process.threads")
    number = as_number(threads.value) if threads is not None else None
    if number is None:
        return ()
    cpus = setting(settings, "recorded", "process.cpus_of_host")
    of = f"torchrun makes it 1 without OMP_NUM_THREADS; the host has {cpus.value} CPUs" if cpus is not None else ""
    return (Evidence("torch threads of a rank at its start", number, "", None, of),)
