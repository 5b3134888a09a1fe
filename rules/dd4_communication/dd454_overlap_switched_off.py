"""DeepSpeed reduces gradients after backward instead of during it: overlap_comm is off.

## Meaning
`overlap_comm` defaults to false for ZeRO-1/2 and to true for ZeRO-3. Without it every bucket is reduced where backward
stands still.

## Impact
The time of the reductions is added to each step.

## Diagnosis
`overlap_comm` in the configuration; `bwd_allreduce_microstep` in the wall-clock breakdown shows what it costs.

## Mitigation
`"overlap_comm": true`, at the price of a second bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events, Metrics, Settings
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, Severity, View, severity_for
from ddiag.rulekit.values import as_flag, median_of, setting, zero_number

RULE = Rule(
    id="DD454",
    root_cause="RC-51",
    needs=(Settings,),
    optional=(Metrics, Events),
    capture='the ds_config.json and a log with "wall_clock_breakdown": true',
    symptom="NCCL kernels run one after the other behind backward; low utilisation with ZeRO-1/2",
    evidence="overlap_comm false (or not set below stage 3) and a large bwd_allreduce_microstep",
    applies=lambda signals: (s := signals.get(Settings)) is not None and bool(s.of("ds_config") or s.of("megatron")),
    explained_by=("DD450", "DD1020"),
)
GRADIENT_TIMERS = ("all-grads-sync", "grads-reduce-scatter", "grads-all-reduce", "backward-params-all-reduce")


@dataclass(frozen=True)
class Limits:
    share: float = 0.15
    """Reduction outside backward / step for a warning."""
    critical_share: float = 0.4


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    settings, metrics = signals[Settings], signals.get(Metrics)
    yield from _megatron(settings, metrics, signals.get(Events), limits)
    stage = zero_number(settings, "stage")
    said = setting(settings, "ds_config", "zero_optimization.overlap_comm")
    flag = as_flag(said.value) if said is not None else stage == 3
    if not stage or flag is not False:
        return
    parts = {
        name: median_of(metrics, f"ds.{name}_microstep_ms", skip=1) for name in ("fwd", "bwd", "step", "bwd_allreduce")
    }
    reduce_ms = parts.pop("bwd_allreduce")
    step_ms = sum(value or 0.0 for value in parts.values())
    share = reduce_ms / step_ms if reduce_ms is not None and step_ms > 0 else None
    if share is None and said is None:
        return
    measured = share is not None and share >= limits.share
    yield Finding(
        title="overlap_comm is off: gradients are reduced after backward"
        + (f", {reduce_ms:.0f} ms of each micro-step ({share:.0%})" if measured else ""),
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share)
        if share is not None
        else Severity.INFO,
        confidence=Confidence.HIGH if measured else Confidence.MEDIUM,
        culprits=Culprits(where="zero_optimization.overlap_comm"),
        evidence=(
            Evidence("overlap_comm", "false" if said is not None else "not set", "", "true", "ds_config"),
            *(
                (Evidence("bwd_allreduce_microstep", round(share, 3), "of step", limits.share, ""),)
                if share is not None
                else ()
            ),
        ),
        fix=(
            '"zero_optimization": {"overlap_comm": true, "contiguous_gradients": true}: default only at stage 3; it '
            "holds a second reduce bucket",
        ),
        verify="wall_clock_breakdown: bwd_allreduce_microstep falls towards 0; profile three steps and give them "
        "to ddiag",
        cost=Cost(ms_per_step=reduce_ms, step_share=share) if measured else Cost(),
        why="the breakdown measures the reduction outside of bwd_inner" if measured else "",
        doubt="" if measured else "what it costs is not measured here",
    )


def _megatron(settings: Settings, metrics: Metrics | None, events: Events | None, limits: Limits) -> Iterator[Finding]:
    """Megatron reduces gradients after backward unless it is told to overlap; its timer says how long that takes."""
    said = setting(settings, "megatron", "overlap_grad_reduce")
    timers = (
        [e for e in events.of("megatron.timer") if e.word("timer") in GRADIENT_TIMERS] if events is not None else []
    )
    step_ms = median_of(metrics, "step_ms", skip=1)
    if said is None or as_flag(said.value) is not False or not timers or not step_ms:
        return
    reduce_ms = min(timers[-1].number("min_ms") or timers[-1].number("max_ms") or 0.0, step_ms)
    share = reduce_ms / step_ms
    if share < limits.share:
        return
    yield Finding(
        title=f"overlap_grad_reduce is off: gradients are reduced after backward, {reduce_ms:.0f} ms of each step "
        f"({share:.0%})",
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share),
        confidence=Confidence.HIGH,
        culprits=Culprits(where="--overlap-grad-reduce"),
        evidence=(Evidence(timers[-1].word("timer"), round(share, 3), "of step", limits.share, timers[-1].source),),
        fix=(
            "--overlap-grad-reduce (and --overlap-param-gather with --use-distributed-optimizer)",
            "CUDA_DEVICE_MAX_CONNECTIONS=1 with tensor parallelism, so that reductions are launched in time",
        ),
        verify="the timer all-grads-sync falls towards 0",
        cost=Cost(ms_per_step=reduce_ms, step_share=share),
        why="the least time over ranks is taken, so waiting for a late rank is not counted",
    )
