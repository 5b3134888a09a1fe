"""Connecting many ranks hits a limit of the operating system: open files, ports, the accept queue, threads.

## Meaning
Every rank opens sockets to many others while communicators are made. What works with 64 ranks runs out of file
descriptors, ephemeral ports or backlog with a thousand, or leaves all ranks between rings and trees.

## Impact
The job hangs or fails at init; smaller jobs run.

## Diagnosis
`Too many open files`, `Call to accept failed`, `Cannot assign requested address`; or every rank printed `Connected all
rings` and none `Connected all trees`. A wrong interface fails at any size.

## Mitigation
ulimit -n 1048576, net.core.somaxconn and tcp_max_syn_backlog 65535, a wider ip_local_port_range, several roots
(TORCH_NCCL_RANKS_PER_ROOT), fewer channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement, distinct_hosts
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import lines, name_hosts, shown
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD937",
    root_cause="RC-37",
    needs=(Events,),
    optional=(NodeFacts, Placement),
    capture="NCCL_DEBUG=INFO of all ranks, ulimit -n inside the job, sysctl net.core.somaxconn",
    symptom="fine with 64 ranks, hangs or crashes at init with a thousand",
    evidence="Too many open files, accept failed; all ranks at rings, none at trees",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("nccl.limit", "nccl.connected", "node.too_many_files")
    ),
)
_WORDS = {
    "files": "too many open files",
    "ports": "no free local port",
    "accept": "connections are not accepted",
    "threads": "no more threads",
}
_FIX = (
    "ulimit -n 1048576 in the job (docker --ulimit nofile=1048576, systemd LimitNOFILE)",
    "sysctl net.core.somaxconn=65535 net.ipv4.tcp_max_syn_backlog=65535 net.ipv4.ip_local_port_range='1024 65535'",
    "TORCH_NCCL_RANKS_PER_ROOT=128 (torch 2.6 or later), fewer groups, NCCL_MAX_NCHANNELS=16; a newer plugin",
)


@dataclass(frozen=True)
class Limits:
    processes: int = 4
    """At least so many processes stand at the rings before their common stop means anything."""
    small_job: int = 32
    """Below so many ranks a limit is more likely one process's own leak than scale."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts = signals[Events], signals.get(NodeFacts)
    hit = [*events.of("nccl.limit"), *events.of("node.too_many_files")]
    if hit:
        placement = signals.get(Placement)
        world = placement.world_size if placement is not None else None
        yield _limit(hit, facts, world if world is not None and world < limits.small_job else None)
        return
    rings = _between(events, limits)
    if rings:
        yield _stuck(rings)


def _limit(hit: Sequence[Event], facts: NodeFacts | None, small_world: int | None) -> Finding:
    what = hit[0].word("what") or "files"
    hosts = distinct_hosts(event.host for event in hit)
    known = facts.of("limit.open_files", "kernel.somaxconn") if facts is not None else ()
    rows: tuple[Evidence, ...] = tuple(shown(fact.key, fact) for fact in known[:2])
    return Finding(
        title=f"connecting the ranks hit a limit on {name_hosts(hosts)}: {_WORDS.get(what, what)}",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(hosts=hosts, where="ulimit -n" if what == "files" else None),
        evidence=(*lines("NCCL", hit), *rows),
        fix=_FIX,
        verify="the job starts with as many ranks; ss -s and nstat -az TcpExtListenOverflows stay calm during init",
        why="the operating system refused what every further rank needs",
        doubt=f"with {small_world} ranks only, a leak of descriptors is as likely as scale" if small_world else "",
        state=State.CRASHED,
        began_ns=began(hit),
    )


def _between(events: Events, limits: Limits) -> list[Event]:
    """One line of each process when all, on several hosts, connected rings and none came further."""
    connected = events.of("nccl.connected")
    if any(event.get("what") == "trees" for event in connected):
        return []
    if any(event.get("phase") != "start" for event in events.of("nccl.init")):
        return []
    if events.has("c10d.watchdog_timeout", "log.progress", "nccl.completion_error", "nccl.qp_error"):
        return []
    rings = {(event.host, event.integer("pid")): event for event in reversed(connected)}
    several = len(distinct_hosts(event.host for event in rings.values())) > 1
    return list(rings.values()) if several and len(rings) >= limits.processes else []


def _stuck(rings: Sequence[Event]) -> Finding:
    return Finding(
        title=f"all {len(rings)} processes connected their rings, none its trees: connecting stalls",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(),
        evidence=(Evidence("processes at rings", len(rings)), Evidence("at trees", 0), *lines("NCCL", rings, 2)),
        fix=(_FIX[2], *_FIX[:2]),
        verify="with half the nodes, or NCCL_MAX_NCHANNELS=16, every rank prints Connected all trees",
        why="every process stands at the same point of the set-up, so no rank is to blame",
        doubt="a log that was cut off looks the same: was there a later line?",
        state=State.STALLED,
        began_ns=began(rings),
    )
