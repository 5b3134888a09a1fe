"""The ranks of a node share a few CPUs, or run on the CPUs of the other socket.

## Meaning
A launcher, container or batch system gave every rank the same small set of CPUs, or bound ranks to the socket that
their GPU is not attached to.

## Impact
Ranks wait for each other's threads: launch-bound steps, slow loaders, slow CPU optimizers; copies cross sockets.

## Diagnosis
`taskset -cp` of the ranks: equal sets with fewer CPUs than ranks, or sets that do not overlap with the CPU Affinity
that `nvidia-smi topo -m` gives for the GPU of the rank.

## Mitigation
One set of cores for each rank, near its GPU: torchrun --numa-binding, deepspeed --bind_cores_to_rank, numactl.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ddiag.model.incident import NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.proof import hosts_among, name_hosts, shown

RULE = Rule(
    id="DD220",
    root_cause="RC-50",
    needs=(NodeFacts,),
    optional=(Placement, JobFacts),
    capture="for p in $(pgrep -f train.py); do taskset -cp $p; done; nvidia-smi; nvidia-smi topo -m; or ddiag run",
    symptom="launch-bound since the container or the launcher changed; one socket's ranks are slower",
    evidence="ranks share fewer CPUs than there are ranks, or their CPUs are not those near their GPU",
    applies=lambda signals: (facts := signals.get(NodeFacts)) is not None and bool(facts.of("process.affinity")),
)
_FIX = (
    "torchrun --numa-binding=node, deepspeed --bind_cores_to_rank, numactl --cpunodebind",
    "Slurm: --cpus-per-task and srun --cpu-bind=cores; mpirun --bind-to none; containers: a larger cpuset",
)
_VERIFY = (
    "taskset -cp of every rank: sets of their own, within the CPU Affinity that nvidia-smi topo -m gives for the GPU"
)


@dataclass(frozen=True)
class Limits:
    least_cpus_per_rank: float = 2.0
    """Fewer than this, shared by all, starve the ranks: each has a training thread and NCCL's and the loader's."""
    least_without_devices: float = 1.0
    """The same for ranks that train on CPUs."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, placement, job = signals[NodeFacts], signals.get(Placement), signals.get(JobFacts)
    on_cpu = job is not None and job.device_kind == "cpu"
    least = limits.least_without_devices if on_cpu else limits.least_cpus_per_rank
    bound = {(fact.host, fact.number): fact for fact in facts.of("process.affinity") if fact.number is not None}
    starved = _starved(bound.values(), least, {fact.host: fact.number or 0 for fact in facts.of("cpu.count")})
    if starved:
        first = [fact for fact in starved if fact.host == starved[0].host]
        shared = len(cpus(first[0].text))
        yield _finding(
            f"{len(first)} ranks share {shared} CPU{'s' if shared > 1 else ''}",
            starved,
            placement,
            "every rank may run on the same few CPUs only",
        )
        return
    far = _far(facts, bound, placement)
    if far:
        yield _finding(
            f"{len(far)} process{'es run' if len(far) > 1 else ' runs'} on CPUs far from the GPU",
            far,
            placement,
            "its CPUs and those near its GPU do not overlap",
        )


def _starved(bound: Iterable[NodeFact], least: float, there: Mapping[str | None, float]) -> list[NodeFact]:
    """Ranks of hosts on which all of them are bound to one and the same set of CPUs, too few for so many.

    All the CPUs that a host has (*there*) are no binding.
    """
    by_host: dict[str | None, list[NodeFact]] = {}
    for fact in bound:
        by_host.setdefault(fact.host, []).append(fact)
    found = []
    for host, mine in by_host.items():
        sets = {cpus(fact.text) for fact in mine}
        most = min(least * len(mine), there.get(host, math.inf))
        if len(mine) > 1 and len(sets) == 1 and 0 < len(*sets) < most:
            found += mine
    return found


def cpus(text: str) -> frozenset[int]:
    """``0-3,8`` or a hex mask as numbers of CPUs; empty when it is neither."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last) and len(part) < 12:
            found.update(range(int(first), min(int(last or first), 4095) + 1))
    return frozenset(found)


def _far(
    facts: NodeFacts, bound: Mapping[tuple[str | None, float], NodeFact], placement: Placement | None
) -> list[NodeFact]:
    near = {_bus(fact, placement): cpus(fact.text) for fact in facts.of("gpu.cpu_affinity")}
    found = []
    for fact in facts.of("gpu.process"):
        pid = fact.text.partition(" ")[0]
        own = bound.get((fact.host, float(pid))) if pid.isdigit() else None
        wanted = near.get(_bus(fact, placement), frozenset())
        if own is not None and wanted and cpus(own.text) and not cpus(own.text) & wanted:
            found.append(own)
    return found


def _bus(fact: NodeFact, placement: Placement | None) -> str | None:
    return placement.bus(fact.host, fact.device) if placement is not None else fact.device


def _finding(title: str, seen: list[NodeFact], placement: Placement | None, why: str) -> Finding:
    hosts = hosts_among(seen, placement)
    rows: tuple[Evidence, ...] = tuple(shown(f"CPUs of pid {fact.number:.0f}", fact, fact.text) for fact in seen[:6])
    return Finding(
        title=f"{title} on {name_hosts(hosts)}",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        culprits=Culprits(hosts=hosts, where="CPU affinity"),
        evidence=rows,
        fix=_FIX,
        verify=_VERIFY,
        why=why,
        doubt="an affinity that a program sets for its threads later is not seen here",
    )
