"""NCCL found no device memory left for its buffers.

## Meaning
NCCL allocates outside PyTorch's caching allocator: buffers for every communicator, channel and peer, NVLS and
registered memory. PyTorch had reserved (nearly) all of the device before.

## Impact
The rank fails while a communicator is made or at its first call, though PyTorch itself reports no shortage.

## Diagnosis
`Cuda failure 2 'out of memory'` in NCCL's log. PyTorch's own message with numbers would be a shortage of the model.

## Mitigation
Leave room: a lower memory fraction, fewer process groups and channels, smaller NCCL_BUFFSIZE, no NVLS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD620",
    root_cause="RC-77",
    needs=(Events,),
    optional=(Placement,),
    capture="NCCL_DEBUG=INFO log (all ranks), nvidia-smi while it runs, torch.cuda.memory_reserved() per rank",
    symptom="NCCL fails with out of memory although PyTorch uses only part of the device",
    evidence="Cuda failure 2 'out of memory' from NCCL",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("nccl.cuda_failure"),
    explained_by=("DD710",),
)
OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""


@dataclass(frozen=True)
class Limits:
    many_communicators: int = 8
    """Communicators of one process from which their buffers alone may be the matter."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, placement = signals[Events], signals.get(Placement)
    seen = [
        event
        for event in events.of("nccl.cuda_failure")
        if _out_of_memory(event.integer("code"), event.word("message"))
    ]
    if not seen:
        return
    ranks = {event.rank for event in seen if event.rank is not None}
    if placement is not None:
        ranks |= {seat.rank for event in seen for seat in placement.of_process(event.host, event.integer("pid"))}
    hosts = hosts_among(seen, placement)
    made = [event for event in events.of("nccl.init") if event.get("phase") == "complete"]
    each = max((sum(other.integer("pid") == event.integer("pid") for other in made) for event in made[:1]), default=0)
    count = (
        (Evidence("communicators of one process", each, "", limits.many_communicators, "nccl.init"),) if each else ()
    )
    yield Finding(
        title=f"NCCL found no device memory for its buffers on {name_hosts(hosts)}",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(ranks=tuple(sorted(ranks)), hosts=hosts),
        evidence=(*lines("NCCL", seen), *count),
        fix=(
            "leave room for it: torch.cuda.set_per_process_memory_fraction(0.9), a smaller micro-batch",
            "fewer process groups; NCCL_MAX_CTAS=16, NCCL_BUFFSIZE=2097152, NCCL_NVLS_ENABLE=0, NCCL_CUMEM_ENABLE=0",
        ),
        verify="nvidia-smi's used memory minus torch.cuda.memory_reserved() leaves room; the job passes init",
        why="the allocation that failed was NCCL's own, outside PyTorch's allocator",
        state=State.CRASHED,
        began_ns=began(seen),
    )


def _out_of_memory(code: int | None, message: str) -> bool:
    return code == OUT_OF_MEMORY or message == "out of memory"
