"""/dev/shm is too small for NCCL or for the data loader's workers.

## Meaning
Shared memory of containers is 64 MiB unless asked for otherwise. NCCL wants some 10 MiB for each pair of ranks without
peer access, loader workers a batch each; leftovers of killed jobs (/dev/shm/nccl-*) fill it as well.

## Impact
NCCL fails while it connects, or a process dies by SIGBUS (exit code -7) when a page cannot be had.

## Diagnosis
`posix_fallocate … No space left on device`, `failed to extend /dev/shm/nccl-…`, `Bus error` of a loader worker,
`df /dev/shm`. A `Socket recv failed` of another rank follows from it.

## Mitigation
docker --shm-size=16g or --ipc=host; Kubernetes: emptyDir with medium: Memory at /dev/shm; remove stale files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event, NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, human_bytes
from ddiag.rulekit.proof import hosts_among, lines, name_hosts
from ddiag.rulekit.values import began, ranks_of

SIGBUS = 7

RULE = Rule(
    id="DD912",
    root_cause="RC-12",
    needs=(Events,),
    optional=(NodeFacts, Placement),
    capture="the log with NCCL_DEBUG=WARN, and `df -h /dev/shm` from inside the container",
    symptom="crash at init in a container, Bus error, exit code -7",
    evidence="No space left on device for /dev/shm/nccl-…, SIGBUS, df /dev/shm 64M",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("nccl.shm_error", "launcher.child_failed", "python.exception", "python.fatal", "log.bus_error")
    ),
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",),
)
_BUS = re.compile(r"Bus error|insufficient shared memory \(shm\)|out of shared memory|Unexpected bus error")
_NO_SPACE = re.compile(r"No space left|\(28\)|Cannot allocate memory")


@dataclass(frozen=True)
class Limits:
    small_bytes: int = 1 << 30
    """/dev/shm below this is too small for several ranks with loader workers; containers get 64 MiB by default."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts, placement = signals[Events], signals.get(NodeFacts), signals.get(Placement)
    sizes = facts.of("shm.size_bytes") if facts is not None else ()
    small = [fact for fact in sizes if fact.number is not None and fact.number < limits.small_bytes]
    nccl = events.of("nccl.shm_error")
    full = [event for event in nccl if _NO_SPACE.search(event.word("error"))]
    killed = [event for event in events.of("launcher.child_failed") if abs(_signal(event)) == SIGBUS]
    told = [
        event
        for event in events.of("python.exception", "python.fatal", "log.bus_error")
        if _BUS.search(f"{event.word('message')} {event.word('reason')} {event.text}")
    ]
    vague = [event for event in nccl if not event.word("error") and "nccl-" in event.word("path")]
    if full or vague or (nccl and small):
        yield _finding(list(nccl), (), small, placement, sure=bool(full or small))
    elif told or killed:
        yield _finding([*told, *killed], ranks_of([*killed, *told]), small, placement, sure=bool(told or small))


def _signal(event: Event) -> int:
    code = event.integer("exitcode") or 0
    return event.integer("signal") or (code if code < 0 else 0)


def _finding(
    seen: list[Event], ranks: tuple[int, ...], small: list[NodeFact], placement: Placement | None, *, sure: bool
) -> Finding:
    hosts = hosts_among(seen, placement)
    size = min((fact.number for fact in small if fact.number is not None), default=None)
    how = f" ({human_bytes(size)})" if size is not None else ""
    wanted = max((event.integer("bytes") or 0 for event in seen), default=0)
    rows = tuple(Evidence("df /dev/shm", fact.text, "", None, fact.source) for fact in small[:2])
    need = (Evidence("asked for", human_bytes(wanted), "", None, seen[0].source),) if wanted else ()
    return Finding(
        title=f"/dev/shm{how} is too small on {name_hosts(hosts)}",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        culprits=Culprits(ranks=ranks, hosts=hosts, where="/dev/shm"),
        evidence=(*lines("error", seen), *need, *rows),
        fix=(
            "docker run --shm-size=16g (or --ipc=host); Kubernetes: emptyDir {medium: Memory} mounted at /dev/shm",
            "remove leftovers of killed jobs: rm /dev/shm/nccl-* /dev/shm/torch_* when nothing runs",
            "NCCL_SHM_DISABLE=1 only to get by: it sends local traffic through the network",
        ),
        verify="df -h /dev/shm inside the container shows several GiB free while the job runs",
        why="shared memory could not be made because the file system is full"
        if sure
        else "a segment or page of shared memory could not be had: /dev/shm is nearly always full then",
        doubt=""
        if sure
        else "`df /dev/shm` inside the container would decide; a data file cut short raises SIGBUS too",
        state=State.CRASHED,
        began_ns=began(seen),
    )
