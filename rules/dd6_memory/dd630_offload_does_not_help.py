"""Offload is on, and memory still runs out: on the device because the parameters stayed there, or on the host.

## Meaning
`offload_optimizer` moves the optimizer's states only (12 of 16 bytes per parameter); parameters, gradients and
activations stay. On the host, every rank of a node adds its share: states, pinned copies and buffers.

## Impact
The job pays for the offload and dies all the same; a host out of memory kills a rank without a Python error (-9).

## Diagnosis
ZeRO-3 with `offload_optimizer` but no `offload_param` and a full device; `CPU Virtual Memory … percent` above 90; a
failed allocation in `pin_memory`.

## Mitigation
Offload what is large, to where there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Deaths, Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.oom import NEED, culprit_ranks, of_reason
from ddiag.rulekit.values import as_flag, began, setting, zero_number

RULE = Rule(
    id="DD630",
    root_cause="RC-74",
    needs=(Events,),
    optional=(Settings, Deaths),
    capture="the ds_config.json and the log from its beginning (see_memory_usage lines); free -g on the node",
    symptom="offload is enabled, still out of memory; or the node's memory is full and a rank dies with -9",
    evidence="offload_param missing at stage 3 with a full device; CPU Virtual Memory above 90 %; pin_memory failed",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None and events.has("ds.host_memory", "cuda.oom", "cuda.oom_driver")
    ),
    explained_by=("DD929",),
)
KILLED = 9


@dataclass(frozen=True)
class Limits:
    host_percent: float = 90.0
    """Host memory in use while the job still allocates."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, settings, deaths = signals[Events], signals.get(Settings), signals.get(Deaths)
    optimizer, parameters = _offload(settings, "optimizer"), _offload(settings, "param")
    cpu_adam = any("CPU" in event.word("optimizer") for event in events.of("ds.optimizer"))
    if not (optimizer or parameters or cpu_adam):
        return
    yield from _host(events, deaths, limits)
    pinned = [event for event in events.of("cuda.oom_driver") if event.word("what") == "pinned"]
    if pinned:
        yield _pinning(pinned)
    full = of_reason(events, NEED)
    if full and optimizer and not parameters and zero_number(settings, "stage") == 3:
        yield _device(culprit_ranks(full, deaths), [one.event for one in full])


def _offload(settings: Settings | None, part: str) -> bool:
    device = setting(settings, "ds_config", f"zero_optimization.offload_{part}.device")
    old = setting(settings, "ds_config", "zero_optimization.cpu_offload" + ("" if part == "optimizer" else "_params"))
    return (device is not None and device.value.lower() in ("cpu", "nvme")) or (
        old is not None and as_flag(old.value) is True
    )


def _host(events: Events, deaths: Deaths | None, limits: Limits) -> Iterator[Finding]:
    tight = [e for e in events.of("ds.host_memory") if (e.number("percent") or 0.0) >= limits.host_percent]
    if not tight:
        return
    worst = max(tight, key=lambda event: event.number("percent") or 0.0)
    killed = _killed_ranks(events, deaths)
    yield Finding(
        title=f"CPU offload fills the host: {worst.number('percent'):.1f} % of its memory was in use"
        + (f" {worst.word('where')[:60]}" if worst.word("where") else ""),
        severity=Severity.CRITICAL if killed is not None else Severity.WARNING,
        confidence=Confidence.HIGH if killed is not None else Confidence.MEDIUM,
        culprits=Culprits(ranks=killed or ()),
        evidence=(
            Evidence("host memory in use", worst.number("percent") or 0.0, "%", limits.host_percent, worst.source),
            Evidence("host memory in use", worst.number("used_gb") or 0.0, "GB", None, worst.source),
        ),
        fix=(
            "offload needs about 16-18 bytes of host memory per parameter and node (4 fp32 parameters, 8 Adam states, "
            "2-4 gradients, pinned buffers): fewer ranks per node, more nodes, or more memory",
            '"offload_optimizer": {"device": "nvme", "nvme_path": …}, or "ratio": below 1, or lower "sub_group_size"',
            "pin_memory: false saves the pinned copies (and costs bandwidth); zero.Init / low_cpu_mem_usage=True so "
            "that not every rank loads the whole checkpoint",
        ),
        verify="see_memory_usage: CPU Virtual Memory stays below 80 % after initialisation; free -g",
        state=State.CRASHED if killed is not None else State.DEGRADED,
        began_ns=began(tight),
        why="the offloaded states of all ranks of a node share its memory",
        doubt="" if killed else "nobody was killed in what was given",
    )


def _killed_ranks(events: Events, deaths: Deaths | None) -> tuple[int, ...] | None:
    """Ranks that were killed (-9); empty when somebody was, but not known who; None when nobody was."""
    dead = [d for d in deaths.first if d.cause == "host_oom" or "signal 9" in d.what] if deaths is not None else []
    children = [
        e for e in events.of("launcher.child_failed") if e.get("signal") == KILLED or e.get("exitcode") == -KILLED
    ]
    if not dead and not children:
        return None
    known = {death.rank for death in dead} or {event.rank for event in children}
    return tuple(sorted(rank for rank in known if rank is not None))


def _pinning(pinned: list[Event]) -> Finding:
    return Finding(
        title="host memory could not be pinned: CUDA reports out of memory in pin_memory",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(where="pin_memory"),
        evidence=tuple(Evidence("failed call", event.word("error"), "", None, event.source) for event in pinned[:4]),
        fix=(
            '"offload_optimizer"/"offload_param": {"pin_memory": false}, or lower "buffer_count" and "buffer_size"',
            "raise the limit: ulimit -l unlimited, docker --ulimit memlock=-1, more memory for the container",
        ),
        verify="python -c 'import torch; torch.empty(8<<30, dtype=torch.uint8).pin_memory()' on the node",
        state=State.CRASHED,
        began_ns=began(pinned),
        why="pinned pages cannot be swapped and count against the memlock and cgroup limits; the device is not full",
    )


def _device(ranks: tuple[int, ...], events: list[Event]) -> Finding:
    return Finding(
        title="only the optimizer is offloaded: with ZeRO-3 the parameters stay on the device, and it is full",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(ranks=ranks, where="zero_optimization.offload_param"),
        evidence=(Evidence("offload_param", "not set", "", "cpu", "ds_config"),),
        fix=(
            '"offload_param": {"device": "cpu", "pin_memory": true} at stage 3',
            "if the peak is in forward or backward it is activations: micro-batch, activation checkpointing",
        ),
        verify="see_memory_usage after initialisation: MA falls by 2 bytes per parameter / ranks",
        state=State.CRASHED,
        began_ns=began(events),
        why="offload_optimizer moves the fp32 states only",
        doubt="a memory snapshot at the peak tells states from activations",
    )
