"""RDMA memory cannot be registered: the limit of locked memory is too low, or the container lacks IPC_LOCK.

## Meaning
Completion queues and buffers of RDMA are pinned. With `ulimit -l` of 64 KiB or 8 MiB, as containers, mpirun over ssh
and some Slurm set-ups have it, that fails.

## Impact
NCCL fails while it connects nodes.

## Diagnosis
`ibv_create_cq failed`, `ibv_reg_mr… failed with error Cannot allocate memory`, and `ulimit -l` inside the job.
`ibv_modify_qp` is another matter (route, GID), `Bad address` is GPUDirect.

## Mitigation
docker --ulimit memlock=-1 --cap-add=IPC_LOCK; Slurm PropagateResourceLimitsExcept=MEMLOCK; systemd
LimitMEMLOCK=infinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, human_bytes
from ddiag.rulekit.proof import hosts_among, lines, name_hosts
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD926",
    root_cause="RC-26",
    needs=(Events,),
    optional=(NodeFacts, Placement),
    capture="the log with NCCL_DEBUG=WARN, and `ulimit -l` from inside the job on every node",
    symptom="InfiniBand init fails in containers, or only under mpirun, ssh or Slurm",
    evidence="ibv_create_cq or ibv_reg_mr: Cannot allocate memory; ulimit -l 64",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("nccl.memlock"),
)


@dataclass(frozen=True)
class Limits:
    enough_bytes: int = 1 << 30
    """A limit of locked memory below this cannot serve RDMA."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts, placement = signals[Events], signals.get(NodeFacts), signals.get(Placement)
    known = facts.of("limit.memlock_bytes") if facts is not None else ()
    low = [fact for fact in known if fact.number is not None and fact.number < limits.enough_bytes]
    enough = bool(known) and not low
    seen = [event for event in events.of("nccl.memlock") if _for_want_of_memory(event.word("error"))]
    certain = [event for event in seen if event.word("error")]
    if not seen or (enough and not certain):
        return
    hosts = hosts_among(seen, placement)
    limit = min((fact.number for fact in low if fact.number is not None), default=None)
    how = f", limit {human_bytes(limit)}" if limit is not None else ""
    yield Finding(
        title=f"RDMA memory could not be locked on {name_hosts(hosts)} ({seen[0].word('call')}{how})",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if low or (certain and not enough) else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, where="ulimit -l"),
        evidence=(*lines("NCCL", seen), *(_row(fact) for fact in known[:2])),
        fix=(
            "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK; Kubernetes: capabilities: {add: [IPC_LOCK]}",
            "Slurm: PropagateResourceLimitsExcept=MEMLOCK; systemd: LimitMEMLOCK=infinity for slurmd and sshd",
        ),
        verify="`ulimit -l` inside the job prints unlimited on every node; the job passes ibv_create_cq",
        why="pinning memory for RDMA was refused" + (", and the limit is too low for it" if low else ""),
        doubt="the limit is high enough: the host may be out of memory" if enough else "",
        state=State.CRASHED,
        began_ns=began(seen),
    )


def _for_want_of_memory(error: str) -> bool:
    return not error or "allocate memory" in error or "ENOMEM" in error


def _row(fact: NodeFact) -> Evidence:
    return Evidence("max locked memory", fact.text, "", None, fact.source)
