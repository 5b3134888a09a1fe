"""fp16 training throws its updates away: the loss scale collapses.

## Meaning
The scaler halves the loss scale whenever a gradient overflows, and skips that step. Some overflows at the start are how
it finds its scale; a scale that keeps falling means that gradients overflow at any scale.

## Impact
Nothing is learnt in the skipped steps; at the smallest scale DeepSpeed ends the run.

## Diagnosis
Consecutive OVERFLOW lines down to a small scale; `skipped=` or `number of skipped iterations` that grows; a gradient
norm of nan.

## Mitigation
bf16; a lower learning rate; clean data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, Metrics
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD1120",
    root_cause="RC-62",
    needs=(),
    optional=(Events, Metrics),
    capture="the whole log of one rank from the first step on",
    symptom="the loss stays flat; OVERFLOW! … reducing to; Current loss scale already at minimum",
    evidence="a run of halvings to a small scale, skipped steps that go on, a gradient norm of nan",
    applies=lambda signals: signals.has(Events) or signals.has(Metrics),
    references=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@dataclass(frozen=True)
class Limits:
    halvings: int = 6
    """Consecutive reductions; up to five at the start find the scale."""
    small_scale: float = 128.0
    """A healthy fp16 run stays in the thousands or above; the search from 2^32 down ends far above this."""
    skipped_share: float = 0.05
    """Skipped / all steps for a warning, once there were some."""
    skipped: int = 5
    settled: int = 50
    """Steps without which skips say nothing: the scale is still being found."""
    nan_in_a_row: int = 3
    """Printed gradient norms of nan or inf one after the other."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, metrics = signals.get(Events), signals.get(Metrics)
    overflows = list(events.of("ds.overflow")) if events is not None else []
    ended = list(events.of("ds.scale_minimum")) if events is not None else []
    run = _longest_fall(overflows)
    fallen = len(run) >= limits.halvings and (run[-1].number("new_scale") or math.inf) <= limits.small_scale
    if ended or fallen:
        yield _collapse(run, ended, limits)
        return
    if metrics is not None:
        yield from _from_metrics(metrics, limits)


def _longest_fall(overflows: list[Event]) -> list[Event]:
    """The longest run of reductions in which each starts where the one before ended."""
    best: list[Event] = []
    current: list[Event] = []
    for event in overflows:
        if event.get("hysteresis") is True or event.number("scale") is None:
            continue
        follows = current and (event.number("scale") or 0.0) <= (current[-1].number("new_scale") or 0.0)
        current = [*current, event] if follows else [event]
        best = max(best, current, key=len)
    return best


def _collapse(run: list[Event], ended: list[Event], limits: Limits) -> Finding:
    first = run[0].number("scale") if run else None
    last = run[-1].number("new_scale") if run else None
    fall = f"{len(run)} overflows in a row took the loss scale from {first:g} to {last:g}" if run else ""
    title = "the loss scale reached its minimum and the run ended" if ended else fall
    return Finding(
        title=f"{title}: {fall}" if ended and run else title,
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(where="fp16"),
        evidence=(
            *((Evidence("overflows in a row", len(run), "", limits.halvings, run[-1].source),) if run else ()),
            *((Evidence("loss scale", last, "", limits.small_scale, run[-1].source),) if last is not None else ()),
            *(Evidence("ended at the smallest scale", "yes", "", None, event.source) for event in ended[:1]),
        ),
        fix=FIXES,
        verify="log the loss scale: it must stay above 1024 and rise again; a run in bf16 shows whether it was the "
        "format",
        state=State.CRASHED if ended else State.DEGRADED,
        began_ns=began([*run, *ended]),
        why="each overflow skips the step and halves the scale; it never found one at which the gradients are finite",
        doubt="all ranks skip together; a rank that skips alone is another fault (RC-39)",
    )


FIXES = (
    'bf16 instead of fp16 ("bf16": {"enabled": true}, mixed_precision: bf16): no scaler; models pre-trained in bf16 '
    "overflow in fp16",
    "lower the learning rate or lengthen its warm-up; clip gradients after unscaling",
    "look for the batch: empty labels, all-masked samples, corrupt data give infinite losses",
    '"fp16": {"initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}',
)


def _from_metrics(metrics: Metrics, limits: Limits) -> Iterator[Finding]:
    skipped, steps = _skipped(metrics)
    share = skipped / steps if steps else 0.0
    nan_run = _longest_nan(metrics)
    many = skipped >= limits.skipped and steps >= limits.settled and share >= limits.skipped_share
    if not many and nan_run < limits.nan_in_a_row:
        return
    title = f"{skipped:.0f} of {steps:.0f} steps were skipped ({share:.0%})" if many else ""
    nan_title = f"the gradient norm was not finite {nan_run} times in a row" if nan_run >= limits.nan_in_a_row else ""
    yield Finding(
        title="; ".join(filter(None, (title, nan_title))),
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if many else Confidence.MEDIUM,
        culprits=Culprits(),
        evidence=(
            *((Evidence("skipped steps", round(share, 3), "of steps", limits.skipped_share, "log"),) if many else ()),
            *(
                (Evidence("gradient norm nan in a row", nan_run, "lines", limits.nan_in_a_row, "log"),)
                if nan_title
                else ()
            ),
        ),
        fix=FIXES,
        verify="the share of skipped steps falls below 1 %, and the gradient norm is finite",
        why="a skipped step is computed and paid for, but teaches nothing",
    )


def _skipped(metrics: Metrics) -> tuple[float, float]:
    """(skipped steps, steps) as DeepSpeed (a running total) or Megatron (per printed line) says."""
    total = metrics.series("ds.skipped_steps")
    if not total.is_empty():
        last = total.row(total.height - 1, named=True)
        return float(last["value"]), float(last["step"] or 0)
    lines = metrics.series("skipped_iterations").unique("step", maintain_order=True)
    numbers = [step for step in lines["step"].to_list() if step is not None]
    if not numbers:
        return 0.0, 0.0
    interval = numbers[-1] - numbers[-2] if len(numbers) > 1 else numbers[-1]
    return float(lines["value"].sum()), float(max(lines.height * interval, 1))


def _longest_nan(metrics: Metrics) -> int:
    best = current = 0
    for value in metrics.series("grad_norm")["value"].to_list():
        current = current + 1 if value is not None and not math.isfinite(value) else 0
        best = max(best, current)
    return best
