"""Gradients are reduced in every micro-batch although they are only needed once per step.

## Meaning
With gradient accumulation only the last backward pass must reduce. ZeRO-2 and -3 reduce each time for good reason; DDP
and ZeRO-0/1 need not.

## Impact
Accumulation gives no speed-up: communication is paid as often as without it.

## Diagnosis
Accumulation above 1 at a stage below 2, and a reduction time in every micro-step of the breakdown.

## Mitigation
`no_sync()` for all micro-batches but the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Metrics, Settings
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, View, severity_for
from ddiag.rulekit.values import as_number, median_of, setting, zero_number

RULE = Rule(
    id="DD835",
    root_cause="RC-70",
    needs=(Metrics, Settings),
    capture='the configuration and a log with "wall_clock_breakdown": true; a trace of one step decides (DD801)',
    symptom="gradient accumulation gives no speed-up",
    evidence="bwd_allreduce in every micro-step with accumulation and a ZeRO stage below 2",
    applies=lambda signals: (
        (m := signals.get(Metrics)) is not None
        and signals.has(Settings)
        and not m.series("ds.bwd_allreduce_microstep_ms").is_empty()
    ),
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.1
    """Reduction / (forward + backward) of a micro-step."""
    critical_share: float = 0.4
    micro_steps: int = 4
    present: float = 0.9
    """Micro-steps with a reduction / all; with no_sync it is one of the accumulated ones."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    metrics, settings = signals[Metrics], signals[Settings]
    said = setting(settings, "ds_config", "gradient_accumulation_steps")
    accumulated = as_number(said.value) if said is not None else None
    if not accumulated or accumulated < 2 or (zero_number(settings, "stage") or 0) >= 2:
        return
    times = metrics.series("ds.bwd_allreduce_microstep_ms")["value"].to_list()
    forward, backward = (median_of(metrics, f"ds.{part}_microstep_ms") for part in ("fwd", "bwd"))
    reduce_ms = median_of(metrics, "ds.bwd_allreduce_microstep_ms")
    if len(times) < limits.micro_steps or not forward or not backward or not reduce_ms:
        return
    present = sum(time > 0.05 * backward for time in times) / len(times)
    share = reduce_ms / (forward + backward)
    if present < limits.present or share < limits.share:
        return
    wasted = reduce_ms * (accumulated - 1)
    yield Finding(
        title=f"gradients are reduced in each of {accumulated:.0f} micro-batches, {reduce_ms:.0f} ms each; once is "
        f"enough",
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share),
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where="gradient accumulation"),
        evidence=(
            Evidence("reduction", round(share, 3), "of micro-step", limits.share, "bwd_allreduce_microstep"),
            Evidence("micro-steps with a reduction", round(present, 2), "of all", limits.present, ""),
        ),
        fix=(
            "with model.no_sync(): for all micro-batches but the last (FSDP2: set_requires_gradient_sync(False); "
            "accelerate: with accelerator.accumulate(model))",
            "let DeepSpeed count: call engine.backward/step for every micro-batch, with "
            "gradient_accumulation_steps set",
        ),
        verify="one set of reductions per optimizer step in a trace",
        cost=Cost(ms_per_step=wasted),
        why="the breakdown shows a reduction in every micro-step",
    )
