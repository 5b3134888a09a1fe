"""Memory ran out although enough was free inside the allocator: its free pieces are too small.

## Meaning
The allocator has reserved memory that no tensor uses, but in pieces between live blocks; none is large enough for the
request. Varying shapes (sequence lengths, ZeRO-3 gathers, evaluation batches) cut it up.

## Impact
OutOfMemoryError although gigabytes are free; before that, steps in which the allocator gives all its blocks back and
asks the driver anew ("cache flushes", cudaMalloc retries), which stop the device for 100s of milliseconds.

## Diagnosis
Reserved but unallocated memory is large, and together with what is free it would have served the request.

## Mitigation
expandable_segments, which can grow and move blocks; fixed or bucketed shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Deaths, Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, human_bytes
from ddiag.rulekit.oom import FRAGMENTED, FRAGMENTED_SHARE, Oom, culprit_ranks, gravity, numbers, of_reason
from ddiag.rulekit.values import began, hosts_of, ranks_of

RULE = Rule(
    id="DD628",
    root_cause="RC-28",
    needs=(Events,),
    optional=(Deaths, Settings, JobFacts),
    capture="the full OutOfMemoryError line, DeepSpeed's warnings, or torch.cuda.memory_stats() of every rank",
    symptom="out of memory although '20 GiB reserved but unallocated'; steps suddenly several times slower",
    evidence="reserved - allocated is large at the OOM; allocator cache flushes; cudaMalloc retries > 0",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("cuda.oom", "ds.cache_flushes", "cuda.memory_summary", "cuda.snapshot")
    ),
    references=(
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
    ),
)
FIXES = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment of all ranks (torch >= 2.10: "
    "PYTORCH_ALLOC_CONF; ROCm: PYTORCH_HIP_ALLOC_CONF); not together with max_split_size_mb",
    "fewer different shapes: pad to a few lengths, pack sequences, drop the odd last batch",
    "DeepSpeed ZeRO-3: lower stage3_max_live_parameters and stage3_max_reuse_distance",
    "empty_cache() on all ranks at the same step (DeepSpeed: get_accelerator().empty_cache()), e.g. after evaluation",
)


@dataclass(frozen=True)
class Limits:
    flushes: int = 2
    """Cache flushes within a step, seen at least twice: one at the start of a run happens in healthy ones."""
    retries: int = 5
    """cudaMalloc retries of a run from which the allocator works at the limit."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    found = of_reason(events, FRAGMENTED)
    if found:
        named = culprit_ranks(found, signals.get(Deaths), signals.get(JobFacts))
        yield _at_oom(found, named, signals.get(Settings), signals.get(Deaths))
    yield from _before_oom(events, limits)


def _at_oom(
    found: tuple[Oom, ...], ranks: tuple[int, ...], settings: Settings | None, deaths: Deaths | None
) -> Finding:
    worst = max(found, key=lambda one: one.unallocated)
    severity, state = gravity(found, deaths)
    already = settings is not None and any("expandable_segments:True" in one.value for one in settings.of("env"))
    return Finding(
        title=f"{human_bytes(worst.unallocated)} of {worst.gpu} are reserved but too fragmented for a request of "
        f"{human_bytes(worst.tried)}",
        severity=severity,
        confidence=Confidence.MEDIUM if already else Confidence.HIGH,
        culprits=Culprits(ranks=ranks, hosts=hosts_of(one.event for one in found) if ranks else ()),
        evidence=tuple(
            Evidence(
                f"{one.gpu}: reserved but unallocated",
                round(one.unallocated / max(one.capacity, 1), 3),
                "of capacity",
                FRAGMENTED_SHARE,
                one.event.source,
            )
            for one in found[:8]
        ),
        fix=FIXES[1:] if already else FIXES,
        verify="torch.cuda.memory_stats(): num_alloc_retries stays 0, and reserved_bytes.all.current minus "
        "allocated_bytes.all.current stays below 10 % of the device, per rank over 100 steps",
        state=state,
        began_ns=began(one.event for one in found),
        why=numbers(worst),
        doubt="expandable_segments is on already: look for memory kept in private pools (CUDA graphs)"
        if already
        else "",
    )


def _before_oom(events: Events, limits: Limits) -> Iterator[Finding]:
    """Flushes and retries slow the run before anything fails."""
    flushes = [event for event in events.of("ds.cache_flushes") if (event.integer("count") or 0) >= 1]
    retries = [e for e in events.of("cuda.memory_summary") if (e.integer("retries") or 0) >= limits.retries]
    total = sum(event.integer("count") or 0 for event in flushes)
    if total < limits.flushes and not retries:
        return
    seen: list[Event] = [*flushes, *retries]
    worst = max([event.integer("count") or 0 for event in flushes], default=0)
    most = max([event.integer("retries") or 0 for event in retries], default=0)
    said = f"{worst} allocator cache flushes within a step" if worst else f"{most} cudaMalloc retries"
    ranks = ranks_of(seen)
    yield Finding(
        title=f"the allocator works at the limit: {said}",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(),
        evidence=tuple(
            Evidence("cache flushes", event.integer("count") or 0, "per step", 0, event.source) for event in flushes[:8]
        )
        + tuple(
            Evidence("cudaMalloc retries", event.integer("retries") or 0, "", limits.retries, event.source)
            for event in retries[:8]
        ),
        fix=(*FIXES, "smaller micro-batch or a larger ZeRO stage, so that a step fits without flushing"),
        verify="the warning no longer appears; torch.cuda.memory_stats()['num_alloc_retries'] does not grow",
        began_ns=began(seen),
        why="each flush waits for the device, frees every cached block and asks the driver again; ranks flush at "
        "different steps, and all others wait",
        victims=ranks,
    )
