"""One node uses fewer or other network devices than its peers: a dead rail, or a slow device in the list.

## Meaning
NCCL takes the RDMA ports that are up. A port that is down drops out of one node's list, a management NIC slips into
another's; the traffic of that rail then detours through the remaining ones.

## Impact
Collectives run at the pace of the node with the fewest rails.

## Diagnosis
`NET/IB : Using` of all nodes side by side; ibstat State and Rate of the missing device.

## Mitigation
Repair the port (cable, transceiver, switch), or drain the node; name the devices in NCCL_IB_HCA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.incident import NodeFact
from ddiag.model.placement import Placement, same_host
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.proof import name_hosts, shown
from ddiag.rulekit.transports import nics_by_host

RULE = Rule(
    id="DD935",
    root_cause="RC-35",
    needs=(Events,),
    optional=(NodeFacts, Placement),
    capture="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET on all nodes, and ibstat of each",
    symptom="half the expected bandwidth, or some nodes slower than others",
    evidence="the list of NET/IB devices of one node is shorter than its peers', its port is down or slow",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("nccl.nics"),
    explained_by=("DD913",),
)
_UP = ("Active", "Armed")


@dataclass(frozen=True)
class Limits:
    slow_share: float = 0.5
    """A device in use whose rate is at most this part of its siblings' is a slow one."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts, placement = signals[Events], signals.get(NodeFacts), signals.get(Placement)
    used = nics_by_host(events)
    usual, odd = _odd(used)
    down = [fact for fact in (facts.of("nic.state") if facts is not None else ()) if fact.text not in _UP]
    if odd:
        yield _missing(used, usual, odd, down, events)
    slow = _slow(used, facts, limits)
    if slow:
        yield _too_slow(slow, placement)


def _odd(used: Mapping[str, frozenset[str]]) -> tuple[frozenset[str], tuple[str, ...]]:
    """What most hosts use, and the hosts that lack part of it; of two hosts the one with less is odd."""
    if len(used) < 2:
        return frozenset(), ()
    counts = Counter(used.values())
    usual = max(counts, key=lambda names: (counts[names], len(names)))
    return usual, tuple(host for host, names in used.items() if usual - names)


def _missing(
    used: Mapping[str, frozenset[str]],
    usual: frozenset[str],
    odd: Sequence[str],
    down: Sequence[NodeFact],
    events: Events,
) -> Finding:
    gone = sorted({name for host in odd for name in usual - used[host]})
    said = [fact for fact in down if fact.device in gone and any(same_host(fact.host, host) for host in odd)]
    lines = {event.host: event for event in reversed(events.of("nccl.nics"))}
    rows = [
        shown(f"devices of {host}", lines[host], ", ".join(sorted(used[host])))
        for host in (*odd[:3], *_others(used, odd))
    ]
    state = "".join(f" ({fact.device} is {fact.text})" for fact in said[:1])
    few = len(used) == 2 and not said
    return Finding(
        title=f"{', '.join(gone[:4])} is missing on {name_hosts(odd)}, while peers use it{state}",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM if few else Confidence.HIGH,
        culprits=Culprits(hosts=tuple(odd), devices=tuple(gone)),
        evidence=(*rows, *(shown(f"{fact.device} state", fact) for fact in said[:2])),
        fix=(
            f"bring {', '.join(gone[:4])} up on {name_hosts(odd)}: ibstat, cable, transceiver, switch port; else drain",
            "same NCCL_IB_HCA==mlx5_0,mlx5_1,… on all nodes, so that a missing device is an error instead of a detour",
        ),
        verify="grep 'NET/IB : Using' of all nodes | sort | uniq -c: one list; ibstat shows State: Active everywhere",
        why="its list of devices is shorter than that of its peers" + (", and the port is down" if said else ""),
        doubt="with two nodes the longer list may be the odd one (a management NIC in it)" if few else "",
    )


def _others(used: Mapping[str, frozenset[str]], odd: Sequence[str]) -> list[str]:
    return [host for host in used if host not in odd][:1]


def _slow(used: Mapping[str, frozenset[str]], facts: NodeFacts | None, limits: Limits) -> list[NodeFact]:
    """Rates of devices in use that are far below those of the same host's other devices."""
    rates = [fact for fact in (facts.of("nic.rate_gbps") if facts is not None else ()) if fact.number]
    found = []
    for fact in rates:
        owners = [names for host, names in used.items() if same_host(fact.host, host)]
        siblings = [one.number or 0 for one in rates if one.host == fact.host]
        if any(fact.device in names for names in owners) and (fact.number or 0) <= limits.slow_share * max(siblings):
            found.append(fact)
    return found


def _too_slow(slow: Sequence[NodeFact], placement: Placement | None) -> Finding:
    hosts = tuple(dict.fromkeys(host for fact in slow if placement and (host := placement.host(fact.host))))
    devices = tuple(dict.fromkeys(fact.device for fact in slow if fact.device))
    rows: tuple[Evidence, ...] = tuple(
        shown(f"{fact.device} rate", fact, fact.number or 0, "Gb/s") for fact in slow[:4]
    )
    return Finding(
        title=f"{', '.join(devices)} of {name_hosts(hosts)} is in use although it is much slower than its siblings",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, devices=devices),
        evidence=rows,
        fix=(
            f"NCCL_IB_HCA=^={','.join(devices)} when it is a management NIC",
            "a port that should be fast: check cable and negotiated speed (mlxlink -d DEVICE)",
        ),
        verify="NET/IB : Using lists devices of one speed only; all_reduce_perf reaches the rate of all rails",
        why="NCCL spreads traffic over all devices it uses, and the slowest sets the pace",
    )
