"""RDMA traffic broke down: a port flaps, a cable or switch loses packets, or the other side is gone.

## Meaning
A send was repeated until its retries were used up (status 12). Status 5 on the same connection is only the flush that
follows. A `port error` event, or a link that went down, tells which side it was; else the node that all reports share.

## Impact
NCCL gives up with ncclRemoteError, often after hours, and the job ends.

## Diagnosis
`Got completion … status=12 vendor err 129` of all nodes: the common device or peer; `Got async event : port error`;
kernel `Link down`. A peer that died first has an earlier error of its own in its log. At the very start it is rather
routing (GID).

## Mitigation
Take the node out; cable, transceiver, switch port; NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 bridge short losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement, distinct_hosts
from ddiag.model.signals_incident import Deaths, Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import lines, name_hosts
from ddiag.rulekit.rdma import FLUSHED, RETRIES, STATUS, address, addresses, by_gid, down_links, port_errors
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD913",
    root_cause="RC-13",
    needs=(Events,),
    optional=(Placement, Deaths),
    capture="NCCL_DEBUG=WARN logs of all nodes, dmesg of the nodes they name, ibqueryerrors or ethtool -S twice",
    symptom="ncclRemoteError or 'error 12' after hours",
    evidence="status 12 completions with one node or device in common, port error events, link down in the kernel log",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None and events.has("nccl.completion_error", "nccl.async_event")
    ),
    explained_by=("DD906", "DD907", "DD912", "DD929", "DD930"),
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout",),
)
_FIX = (
    "drain {who}; check cable, transceiver and switch port; mlxlink -d DEVICE -c, ibqueryerrors, ethtool -S",
    "to bridge short losses: NCCL_IB_TIMEOUT=22 (17 s a try) and NCCL_IB_RETRY_CNT=7",
    "RoCE: PFC and ECN on every switch of the path",
)


@dataclass(frozen=True)
class Limits:
    partners: int = 2
    """A node that all reports share is named when it failed with at least so many different partners."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, placement = signals[Events], signals.get(Placement)
    completions = events.of("nccl.completion_error")
    real = [event for event in completions if event.integer("status") != FLUSHED]
    ports = port_errors(events)
    if by_gid(events, real) and not ports:
        return
    if ports:
        yield _flap(ports, real, events, placement)
    elif real:
        yield _common(real, events, limits, echo=_died_otherwise(signals.get(Deaths)))
    elif completions:
        yield Abstain(
            "only flushed RDMA operations (status 5) are reported: they follow from another failure",
            "the logs of all nodes from the minutes before: the first line with status 12, or the error of the peer",
        )


def _flap(ports: Sequence[Event], real: Sequence[Event], events: Events, placement: Placement | None) -> Finding:
    hosts = distinct_hosts(event.host for event in ports) or _only(placement)
    nics = tuple(dict.fromkeys(event.word("nic") for event in ports if event.get("nic")))
    links = [event for event in down_links(events) if event.host is None or event.host in hosts]
    stopped = bool(real)
    device = f" ({', '.join(nics[:3])})" if nics else ""
    return Finding(
        title=f"the RDMA port{device} of {name_hosts(hosts)} failed"
        + (", and traffic over it broke down" if stopped else ""),
        severity=Severity.CRITICAL if stopped else Severity.WARNING,
        confidence=Confidence.HIGH if stopped and len(hosts) == 1 else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, devices=nics),
        evidence=(*lines("port", ports, 3), *lines("kernel", links, 2), *lines("completion", real, 2)),
        fix=_fixes(name_hosts(hosts)),
        verify="ibstat, rdma link and dmesg of that node stay calm under an hour of ib_write_bw or all_reduce_perf",
        why="the device itself reported its port"
        + (", and so did the kernel" if links else "")
        + (", before the operations failed" if stopped else ""),
        doubt="several nodes report a port at once: then it is the switch" if len(hosts) > 1 else "",
        state=State.CRASHED if stopped else State.DEGRADED,
        began_ns=began([*ports, *links]),
    )


def _only(placement: Placement | None) -> tuple[str, ...]:
    only = placement.host(None) if placement is not None else None
    return (only,) if only else ()


def _died_otherwise(deaths: Deaths | None) -> bool:
    """A process ended first for a reason of its own: then its peers' RDMA fails because it is gone."""
    own = ("exception", "cuda_oom", "cuda_error", "host_oom", "signal", "gpu_fault", "preempted")
    return deaths is not None and any(death.cause in own for death in deaths.first)


def _common(real: Sequence[Event], events: Events, limits: Limits, *, echo: bool) -> Finding:
    """The node that all failed connections share, if only one does."""
    names = addresses(events)
    partners = _partners(real, names)
    pairs = {frozenset((a, b)) for a, others in partners.items() for b in others}
    shared = [node for node, others in partners.items() if len(others) >= limits.partners and _in_all(node, pairs)]
    hosts = (shared[0],) if len(shared) == 1 else _one_sided(real, names) if len(pairs) == 1 else ()
    involved = ", ".join(sorted(partners)[:4])
    status = next((event.integer("status") for event in real), None) or RETRIES
    count = len(pairs) or len(real)
    rows = (Evidence("connections that failed", count, "pair of nodes" if count == 1 else "pairs of nodes"),)
    return Finding(
        title=(f"RDMA to {name_hosts(hosts)} broke down" if hosts else f"RDMA broke down between {involved or 'nodes'}")
        + f": {STATUS.get(status, f'status {status}')}",
        severity=Severity.INFO if echo else Severity.CRITICAL,
        confidence=Confidence.HIGH
        if hosts and len(pairs) > 1 and status == RETRIES and not echo
        else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts),
        evidence=(*lines("completion", real), *rows),
        fix=_fixes(name_hosts(hosts) if hosts else "the nodes named"),
        verify="ib_write_bw between the pair, and sendrecv_perf for each pair of nodes, run an hour without error",
        why=f"all failed connections have {hosts[0]} in common"
        if hosts
        else "retries were used up; the reports do not single out one node",
        doubt="a process ended for a reason of its own: this is its echo"
        if echo
        else "when the peer's own log shows an earlier error, its process died and this is the echo",
        state=State.CRASHED,
        began_ns=began(real),
    )


def _partners(real: Sequence[Event], names: Mapping[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for event in real:
        peer = address(event.word("peer"))
        peer = names.get(peer, peer)
        if event.host and peer and peer != event.host:
            found.setdefault(event.host, set()).add(peer)
            found.setdefault(peer, set()).add(event.host)
    return found


def _one_sided(real: Sequence[Event], names: Mapping[str, str]) -> tuple[str, ...]:
    """One pair of nodes: the peer, when several devices of one side lost it and only one side complains."""
    sides = {(event.host, event.get("nic") or event.get("dev")) for event in real if event.host}
    if len(sides) < 2 or len({host for host, _ in sides}) > 1:
        return ()
    peer = address(real[0].word("peer"))
    return (names.get(peer, peer),) if peer else ()


def _in_all(node: str, pairs: set[frozenset[str]]) -> bool:
    return all(node in pair for pair in pairs)


def _fixes(who: str) -> tuple[str, ...]:
    return tuple(text.format(who=who) for text in _FIX)
