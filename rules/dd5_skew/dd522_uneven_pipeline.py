"""The pipeline's stages do unequal work, or it has too few micro-batches to fill them.

## Meaning
A pipeline of p stages idles for (p-1)/(m·v+p-1) of the step with m micro-batches and v virtual stages; and every stage
waits for the one with most work, often the first (embedding) or the last (vocabulary head, loss).

## Impact
Every other stage idles as long as the slowest computes longer.

## Diagnosis
Megatron's timers: forward-compute and backward-compute differ over ranks while forward-backward is equal, and others
wait in recv. The arguments give the bubble.

## Mitigation
Fewer layers on the heavy stage, virtual stages, more micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import as_number, began, setting

RULE = Rule(
    id="DD522",
    root_cause="RC-59",
    needs=(),
    optional=(Events, Settings),
    capture="Megatron with --timing-log-level 2 --timing-log-option all, and its printed arguments",
    symptom="low utilisation with pipeline parallelism; the first or last stage is slow",
    evidence="forward/backward-compute max/min over ranks far above 1 with recv waits; bubble (p-1)/(m·v+p-1)",
    applies=lambda signals: (
        ((e := signals.get(Events)) is not None and e.has("megatron.timer"))
        or ((s := signals.get(Settings)) is not None and bool(s.of("megatron", "pipeline_model_parallel_size")))
    ),
    explained_by=("DD524", "DD523"),
)
COMPUTE = ("forward-compute", "backward-compute")
WAITS = ("forward-recv", "backward-recv", "forward-send-backward-recv", "backward-send-forward-recv")


@dataclass(frozen=True)
class Limits:
    spread: float = 1.25
    """Most / least compute of a stage; a balanced split stays within 10 %."""
    equal: float = 1.10
    """forward-backward must be that equal, or ranks do not run one pipeline."""
    bubble: float = 0.25
    """Idle share of the step by arithmetic for a warning."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, settings = signals.get(Events), signals.get(Settings)
    last = _last_of_each(events)
    spreads = {name: _spread(last[name]) for name in COMPUTE if name in last}
    stages, bubble = _bubble(settings)
    waits = [last[name] for name in WAITS if name in last]
    uneven = bool(waits) and max(spreads.values(), default=0.0) >= limits.spread and _whole_is_equal(last, limits)
    if uneven:
        yield _uneven(last, spreads, waits, bubble, limits)
    elif bubble is not None and bubble >= limits.bubble:
        yield _bubbly(stages, bubble, limits)


def _last_of_each(events: Events | None) -> dict[str, Event]:
    """The latest line of each timer that has both its least and largest time."""
    found = events.of("megatron.timer") if events is not None else ()
    return {event.word("timer"): event for event in found if event.number("min_ms") is not None}


def _spread(event: Event) -> float:
    least = event.number("min_ms") or 0.0
    return (event.number("max_ms") or 0.0) / least if least > 0 else 0.0


def _whole_is_equal(last: dict[str, Event], limits: Limits) -> bool:
    whole = last.get("forward-backward")
    return whole is None or _spread(whole) <= limits.equal


def _bubble(settings: Settings | None) -> tuple[int, float | None]:
    """(stages, idle share) from the printed arguments; None where they are missing."""

    def value(name: str) -> float | None:
        found = setting(settings, "megatron", name)
        return None if found is None else as_number(found.value)

    stages = value("pipeline_model_parallel_size")
    batch, micro, copies = value("global_batch_size"), value("micro_batch_size"), value("data_parallel_size")
    if not stages or stages < 2:
        return int(stages or 0), None
    if not batch or not micro or not copies:
        return int(stages), None
    micro_batches = batch / (micro * copies)
    virtual = value("virtual_pipeline_model_parallel_size") or 1.0
    return int(stages), (stages - 1) / (micro_batches * virtual + stages - 1)


def _uneven(
    last: dict[str, Event], spreads: dict[str, float], waits: list[Event], bubble: float | None, limits: Limits
) -> Finding:
    most = sum(last[name].number("max_ms") or 0.0 for name in spreads)
    least = sum(last[name].number("min_ms") or 0.0 for name in spreads)
    return Finding(
        title=f"the busiest pipeline stage computes {most / max(least, 1e-9):.2g} times as long as the idlest "
        f"({most:.0f} against {least:.0f} ms per step)",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where="pipeline split"),
        evidence=(
            *(
                Evidence(f"{name}: most / least over ranks", round(spread, 2), "", limits.spread, last[name].source)
                for name, spread in spreads.items()
            ),
            *(
                Evidence(f"{event.word('timer')}, longest", event.number("max_ms") or 0.0, "ms", None, event.source)
                for event in waits
            ),
            *(
                (Evidence("bubble by arithmetic", round(bubble, 3), "of step", limits.bubble, "arguments"),)
                if bubble
                else ()
            ),
        ),
        fix=(
            "fewer layers on the heavy stage: --decoder-first-pipeline-num-layers / --decoder-last-pipeline-num-layers "
            "or --pipeline-model-parallel-layout; --account-for-embedding-in-pipeline-split, "
            "--account-for-loss-in-pipeline-split (a large vocabulary makes the last stage heavy)",
            "--num-layers-per-virtual-pipeline-stage: interleaved stages even out and shrink the bubble",
            "more micro-batches per step (larger global batch or smaller micro-batch)",
        ),
        verify="--timing-log-option all: compute per stage within 10 %; moving one layer moves the maximum",
        cost=Cost(ms_per_step=max(most - least, 0.0) or None),
        began_ns=began(waits),
        why="forward-backward is equal on all ranks, so the others wait for the stage with most compute",
        doubt="these timers name no rank: a slow device looks the same; it stays with the host when the split changes",
    )


def _bubbly(stages: int, bubble: float, limits: Limits) -> Finding:
    return Finding(
        title=f"{stages} pipeline stages idle for {bubble:.0%} of the step: too few micro-batches",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where="micro-batches"),
        evidence=(Evidence("bubble (p-1)/(m·v+p-1)", round(bubble, 3), "of step", limits.bubble, "arguments"),),
        fix=(
            "more micro-batches: larger --global-batch-size or smaller --micro-batch-size",
            "--num-layers-per-virtual-pipeline-stage; fewer stages with more tensor or data parallelism",
        ),
        verify="throughput per GPU rises by about the share the bubble shrinks",
        cost=Cost(step_share=bubble),
        why="arithmetic of the 1F1B schedule",
        doubt="zero-bubble schedules hide a part of it",
    )
