"""The device's memory is full of live tensors: one rank, or all, needs more than there is.

## Meaning
The caching allocator asked the driver for more memory, got none, gave back its unused blocks and still could not serve
the request. Nearly all of the device is allocated by this process itself.

## Impact
The rank raises OutOfMemoryError and dies; all others wait for it until their timeout.

## Diagnosis
The numbers in the message: what is allocated is close to the capacity, little is reserved without being used, and no
other process holds a noteworthy part.

## Mitigation
Smaller micro-batches, activation checkpointing, a higher ZeRO stage or FSDP, shorter or capped sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Deaths, Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View, human_bytes
from ddiag.rulekit.oom import CORRUPT, NEED, Oom, culprit_ranks, gravity, numbers, of_reason
from ddiag.rulekit.values import began, hosts_of

RULE = Rule(
    id="DD906",
    root_cause="RC-06",
    needs=(Events,),
    optional=(Deaths, JobFacts),
    capture="the log of every rank with the full OutOfMemoryError line; better torch.cuda.memory._dump_snapshot()",
    symptom="CUDA out of memory on one rank, at a long sample, after evaluation or at the first optimizer step",
    evidence="OOM text: allocated close to capacity, little reserved but unallocated, no other process on the device",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("cuda.oom"),
    explained_by=("DD630", "DD633", "DD631", "DD627"),
    references=("https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",),
)


@dataclass(frozen=True)
class Limits:
    skewed_ranks_share: float = 0.5
    """At most this part of the ranks out of memory: their data or their part of the model is larger than others'."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts = signals[Events], signals.get(JobFacts)
    found = of_reason(events, NEED)
    if not found:
        if of_reason(events, CORRUPT):
            yield Abstain(
                "a request of an absurd size (more than 1 EB): the size was received through a collective that failed",
                "the logs of all ranks from before this error",
            )
        return
    named = culprit_ranks(found, signals.get(Deaths), facts)
    worst = max(found, key=lambda one: one.tried)
    severity, state = gravity(found, signals.get(Deaths))
    yield Finding(
        title=_title(worst, {one.gpu for one in found}),
        severity=severity,
        confidence=Confidence.HIGH if worst.allocated else Confidence.MEDIUM,
        culprits=Culprits(ranks=named, hosts=hosts_of(one.event for one in found) if named else ()),
        victims=tuple(sorted(set(facts.ranks) - set(named))) if facts is not None and named else (),
        evidence=tuple(_evidence(found)),
        fix=_fixes(few=_few(named, facts, limits)),
        verify="torch.cuda.memory._record_memory_history(); …; torch.cuda.memory._dump_snapshot('oom.pickle') and give "
        "the file to ddiag analyze; torch.cuda.max_memory_allocated() per rank must stay below 90 % of the device",
        state=state,
        began_ns=began(one.event for one in found),
        why=numbers(worst),
        doubt="" if worst.allocated else "the message does not say how much was allocated by whom",
    )


def _title(one: Oom, gpus: set[str]) -> str:
    subject = f"{one.gpu} is" if len(gpus) == 1 else f"{len(gpus)} GPUs are"
    if not one.capacity:
        return f"{subject} out of memory: {human_bytes(one.tried)} more did not fit"
    return (
        f"{subject} full: {human_bytes(one.allocated)} of {human_bytes(one.capacity)} hold live tensors, "
        f"{human_bytes(one.tried)} more did not fit"
    )


def _evidence(found: tuple[Oom, ...]) -> Iterator[Evidence]:
    for one in found[:8]:
        label = f"{one.gpu}: allocated by PyTorch"
        if one.capacity:
            share = round(one.allocated / one.capacity, 3)
            yield Evidence(label, share, "of capacity", None, one.event.source)
        yield Evidence(f"{one.gpu}: asked for", round(one.tried / 2**20, 1), "MiB", None, one.event.source)


def _few(ranks: tuple[int, ...], facts: JobFacts | None, limits: Limits) -> bool:
    world = (facts.world_size or len(facts.ranks)) if facts is not None else 0
    return bool(ranks) and len(ranks) <= limits.skewed_ranks_share * max(world, 1)


def _fixes(*, few: bool) -> tuple[str, ...]:
    uneven = (
        "only some ranks ran out: cap the sequence length (max_length, packing), balance tokens per rank, look for "
        "work done on that rank alone (evaluation, logging of tensors, gathering a state dict)",
    )
    return (
        *(uneven if few else ()),
        "halve the micro-batch and double gradient_accumulation_steps: the same batch in half the activations",
        "activation checkpointing: torch.utils.checkpoint(use_reentrant=False), gradient_checkpointing=True "
        "(Hugging Face), --recompute-activations (Megatron): about one more forward pass for most of the activations",
        "shard the states: ZeRO-2, then ZeRO-3 or FSDP FULL_SHARD; offload the optimizer only if that is not enough",
        "compute the loss over the vocabulary in chunks (fused or chunked cross entropy): the logits are often the "
        "peak",
    )
