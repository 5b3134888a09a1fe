"""What fills the device at its peak: model states, which sharding cuts, or activations, which it does not.

## Meaning
Parameters, gradients and Adam states take 16 bytes per parameter in mixed precision; ZeRO and FSDP divide them by the
number of ranks. Activations grow with batch and sequence and are not divided.

## Impact
Raising the ZeRO stage against an activation peak, or checkpointing against a peak of states, costs time and frees
little.

## Diagnosis
A memory snapshot by the lines that allocated what is live; or params × 16 bytes / ranks against what was allocated at
the OOM.

## Mitigation
Choose the stage by the states, checkpointing and micro-batch by the activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddiag.model.incident import Event
from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Deaths, Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, human_bytes
from ddiag.rulekit.oom import NEED, culprit_ranks, of_reason
from ddiag.rulekit.values import as_number, began, setting, zero_number

RULE = Rule(
    id="DD633",
    root_cause="RC-79",
    needs=(Events,),
    optional=(Settings, JobFacts, Deaths),
    capture="torch.cuda.memory._record_memory_history() before the step, torch.cuda.memory._dump_snapshot() at its "
    "peak",
    symptom="a higher ZeRO stage has no effect on the out-of-memory error",
    evidence="live memory by the line that allocated it; states by arithmetic against what was allocated",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("cuda.snapshot", "cuda.oom"),
)


@dataclass(frozen=True)
class Limits:
    activations_share: float = 0.6
    """Of the named live memory, from which activations are what to cut."""
    named_share: float = 0.5
    """Of the live memory whose allocating line is known, without which nothing is said."""
    states_share: float = 0.4
    """States by arithmetic / allocated, up to which the peak cannot be states."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, settings = signals[Events], signals.get(Settings)
    stage = zero_number(settings, "stage") or 0.0
    snapshots = [e for e in events.of("cuda.snapshot") if (e.integer("allocated_bytes") or 0) > 0]
    if snapshots:
        yield from _from_snapshot(max(snapshots, key=lambda e: e.integer("allocated_bytes") or 0), stage, limits)
        return
    full = of_reason(events, NEED)
    states = _states_by_arithmetic(events, settings, signals.get(JobFacts), stage)
    if not full or states is None or stage < 2:
        return
    allocated = max(one.allocated for one in full)
    if allocated and states <= limits.states_share * allocated:
        shown = Evidence("model states by arithmetic", round(states / 2**30, 1), "GiB", None, "16 bytes per parameter")
        found = _finding(1.0 - states / allocated, stage, shown, crashed=True)
        ranks = culprit_ranks(full, signals.get(Deaths), signals.get(JobFacts))
        yield replace(found, culprits=replace(found.culprits, ranks=ranks), began_ns=began(one.event for one in full))


def _from_snapshot(event: Event, stage: float, limits: Limits) -> Iterator[Finding | Abstain]:
    allocated, named = event.integer("allocated_bytes") or 0, event.integer("named_bytes") or 0
    if named < limits.named_share * allocated:
        yield Abstain(
            "the snapshot does not say which lines allocated most of the memory",
            "torch.cuda.memory._record_memory_history(max_entries=200000) before the model is built, then "
            "_dump_snapshot()",
        )
        return
    share = (event.integer("activations_bytes") or 0) / named
    if share >= limits.activations_share:
        shown = Evidence(
            "live memory from forward passes", round(share, 3), "of named", limits.activations_share, event.source
        )
        yield _finding(share, stage, shown, crashed=bool(event.integer("ooms")), event=event)


def _states_by_arithmetic(
    events: Events, settings: Settings | None, facts: JobFacts | None, stage: float
) -> float | None:
    """Bytes of parameters, gradients and Adam states on one rank; None without the number of parameters."""
    counted = [e for e in events.of("trainer.parameters", "megatron.parameters") if e.integer("parameters")]
    processes = setting(settings, "accelerate", "num_processes")
    world = (facts.world_size if facts is not None else None) or as_number(processes.value if processes else None)
    if not counted or not world:
        return None
    largest = max(counted, key=lambda event: event.integer("parameters") or 0)
    parameters = float(largest.integer("parameters") or 0)
    trained = float(largest.integer("trainable") or parameters)
    gathered = {"weights": 2.0 * parameters, "gradients": 2.0 * trained, "states": 12.0 * trained}
    sharded_from = {"weights": 3, "gradients": 2, "states": 1}
    return sum(size / (world if stage >= sharded_from[part] else 1.0) for part, size in gathered.items())


def _finding(share: float, stage: float, shown: Evidence, *, crashed: bool, event: Event | None = None) -> Finding:
    top = event.get("top") if event is not None else None
    lines = [one for one in top if isinstance(one, dict)] if isinstance(top, list) else []
    return Finding(
        title=f"{share:.0%} of the live memory are activations: sharding states"
        + (f" (ZeRO-{stage:.0f})" if stage else "")
        + " cannot shrink them",
        severity=Severity.CRITICAL if crashed and stage >= 2 else Severity.WARNING if crashed else Severity.INFO,
        confidence=Confidence.MEDIUM,
        state=State.CRASHED if crashed else State.DEGRADED,
        culprits=Culprits(modules=tuple(str(one.get("where")) for one in lines[:3])),
        evidence=(
            shown,
            *(
                Evidence(
                    str(one.get("where")),
                    human_bytes(as_number(str(one.get("bytes"))) or 0.0),
                    "live",
                    None,
                    "snapshot",
                )
                for one in lines[:5]
            ),
        ),
        fix=(
            "activation checkpointing (use_reentrant=False), selective where it costs least; smaller micro-batch with "
            "more accumulation; shorter sequences or sequence/context parallelism",
            "chunked or fused cross entropy when the logits lead the list; FlashAttention when attention scores do",
            "the lowest ZeRO stage whose states fit: `ddiag plan` shows states and activations by configuration",
        ),
        verify="a snapshot at the peak after the change: live activations shrank, states did not change",
        why="states take about 16 bytes per parameter divided by the sharding; what is beyond them grows with the "
        "batch",
        doubt="frozen parameters, 8-bit optimizers and LoRA need fewer bytes per parameter",
    )
