"""NCCL or gloo talks over the wrong network interface: a bridge, the loopback, or an address no other node can reach.

## Meaning
The first interface that is up was taken: docker0, a veth or virbr bridge, lo, or one with a link-local address. Its
address exists on every node, or on none but this.

## Impact
Jobs of several nodes hang or fail while they connect; on one node all is well.

## Diagnosis
`Bootstrap : Using` and `NET/Socket : Using` of every node: names of bridges, equal addresses on two hosts, addresses of
different subnets; then `Connect to … failed` with that address. The right address and a refused port is a firewall.

## Mitigation
NCCL_SOCKET_IFNAME==eth0 and GLOO_SOCKET_IFNAME=eth0 (the interface that `ip -br a` shows in the cluster's subnet).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD908",
    root_cause="RC-08",
    needs=(Events,),
    optional=(Placement,),
    capture="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET on all nodes",
    symptom="a job of several nodes hangs or fails at init with Connection refused or No route to host",
    evidence="Bootstrap : Using docker0, lo, a bridge or a link-local address; one address on two hosts",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("nccl.interface", "nccl.nics", "nccl.connect_error", "gloo.connect_failed")
    ),
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",),
)
_BAD_NAME = re.compile(r"^(?:docker|veth|virbr|br-|cni|flannel|cali|lxc|lxdbr|kube-|podman|tunl|dummy|lo$)")
_BAD_ADDRESS = re.compile(r"^(?:127\.|169\.254\.|172\.1[7-9]\.0\.1$|192\.168\.122\.1$|::1$|fe80:)", re.IGNORECASE)
_HOST_PART = re.compile(r"<\d+>$|:\d+$")
_FIX = (
    "NCCL_SOCKET_IFNAME==eth0 on every node: the interface that `ip -br a` shows in the cluster's subnet "
    "(`=` is exact, `^docker0,lo` excludes)",
    "GLOO_SOCKET_IFNAME=eth0 (no `=`) for gloo and for the store",
    "docker: --network=host, or an overlay network that reaches the other nodes",
)
_VERIFY = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET: `Bootstrap : Using` names that interface on every node"


@dataclass(frozen=True)
class Limits:
    hosts: int = 2
    """On fewer nodes any interface serves."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, placement = signals[Events], signals.get(Placement)
    chosen = [event for event in events.of("nccl.interface", "nccl.nics") if _interface(event) is not None]
    firsts = _firsts([event for event in chosen if event.get("purpose") != "socket"]) or _firsts(chosen)
    bad = [event for event in firsts.values() if _is_bad(event)]
    failed = _failed(events)
    twice = _shared(list(firsts.values()))
    several = placement is not None and max(len(placement.hosts), _nodes(placement)) >= limits.hosts
    to_bad = [event for event in failed if _BAD_ADDRESS.search(_address(event))]
    if bad and (failed or twice or several):
        yield _finding(bad, failed, twice, placement)
    elif to_bad:
        yield _finding(to_bad, failed, {}, placement)
    elif (apart := _subnets(firsts)) and failed:
        yield _apart(apart, failed, placement)
    elif failed and not _victims_only(failed, events):
        yield Abstain(
            f"a connection failed ({failed[0].word('error') or failed[0].word('address')}), but the interfaces look "
            "right: a firewall, a dead peer or a full backlog look the same",
            "NCCL_DEBUG=INFO of all nodes, `ip -br a` of two nodes, and nc -vz from one to the port of the other",
        )


def _firsts(chosen: Sequence[Event]) -> dict[str | None, Event]:
    """The first choice of each host."""
    found: dict[str | None, Event] = {}
    for event in chosen:
        found.setdefault(event.host, event)
    return found


def _nodes(placement: Placement) -> int:
    return len({seat.host for seat in placement.seats if seat.host})


def _interface(event: Event) -> tuple[str, str] | None:
    """Name and address of the first interface of an event."""
    if event.kind == "nccl.nics":
        return (event.word("oob"), event.word("oob_address")) if event.get("oob") else None
    names, addresses = event.get("interfaces"), event.get("addresses")
    if not isinstance(names, list) or not isinstance(addresses, list) or not names:
        return None
    return str(names[0]), str(addresses[0])


def _is_bad(event: Event) -> bool:
    name, address = _interface(event) or ("", "")
    return bool(_BAD_NAME.search(name) or _BAD_ADDRESS.search(address))


def _failed(events: Events) -> list[Event]:
    return [*events.of("nccl.connect_error"), *events.of("gloo.connect_failed")]


def _address(event: Event) -> str:
    return _HOST_PART.sub("", event.word("address") or event.word("peer")).strip("[]")


def _shared(firsts: Sequence[Event]) -> dict[str, list[str]]:
    """Addresses that two hosts call their own."""
    owners: dict[str, list[str]] = defaultdict(list)
    for event in firsts:
        found = _interface(event)
        if found is not None and event.host is not None and event.host not in owners[found[1]]:
            owners[found[1]].append(event.host)
    return {address: hosts for address, hosts in owners.items() if len(hosts) > 1}


def _subnets(firsts: dict[str | None, Event]) -> list[Event]:
    """One event for each /16 when hosts chose addresses of different ones."""
    nets: dict[str, Event] = {}
    for event in firsts.values():
        found = _interface(event)
        if found is not None and found[1].count(".") == 3:
            nets.setdefault(".".join(found[1].split(".")[:2]), event)
    return list(nets.values()) if len(nets) > 1 else []


def _victims_only(failed: Sequence[Event], events: Events) -> bool:
    """Refused connections beside errors of their own kind elsewhere: somebody died, and others say why."""
    return events.has("launcher.child_failed", "python.exception", "kernel.xid", "nccl.shm_error", "nccl.memlock")


def _finding(
    bad: Sequence[Event], failed: Sequence[Event], twice: dict[str, list[str]], placement: Placement | None
) -> Finding:
    named = {found[0] for event in bad if (found := _interface(event)) is not None}
    addresses = {found[1] for event in bad if (found := _interface(event)) is not None} or {_address(e) for e in bad}
    hosts = hosts_among(bad, placement) if bad[0].kind.startswith("nccl") else ()
    what = ", ".join(sorted(named)) or "an address that only the node itself can reach"
    stopped = bool(failed)
    extra = f", and {' and '.join(sorted(twice))} is the address of several hosts" if twice else ""
    rows = [shown(f"chosen on {event.host}" if event.host else "chosen", event) for event in bad[:4]]
    return Finding(
        title=f"{name_hosts(hosts)} talk{'s' if len(hosts) <= 1 else ''} over {what} "
        f"({', '.join(sorted(addresses)[:2])}){extra}",
        severity=Severity.CRITICAL if stopped or twice else Severity.WARNING,
        confidence=Confidence.HIGH if failed or twice else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, where="NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME"),
        evidence=(*rows, *lines("failed", failed, 2)),
        fix=_FIX,
        verify=_VERIFY,
        why="other nodes cannot reach such an address" + ("; the connection to it failed" if failed else ""),
        state=State.STALLED if stopped or twice else State.DEGRADED,
        began_ns=began(failed),
    )


def _apart(chosen: Sequence[Event], failed: Sequence[Event], placement: Placement | None) -> Finding:
    rows: list[Evidence] = [shown(f"chosen on {event.host}", event) for event in chosen[:4]]
    names = sorted({f"{found[0]} {found[1]}" for event in chosen if (found := _interface(event)) is not None})
    return Finding(
        title=f"nodes chose interfaces of different networks ({', '.join(names[:3])})",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where="NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME"),
        evidence=(*rows, *lines("failed", failed, 2)),
        fix=_FIX,
        verify=_VERIFY,
        why="the addresses are of different subnets and a connection failed",
        doubt="routed networks may connect different subnets: try `ping` between the two addresses",
        state=State.STALLED,
        began_ns=began(failed),
    )
