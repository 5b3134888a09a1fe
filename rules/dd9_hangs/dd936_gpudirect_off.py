"""RDMA works, but without GPUDirect: every message takes a detour through host memory.

## Meaning
nvidia-peermem is not loaded (or not registered with this OFED), the kernel has no DMA-BUF support for it, or GPU and
NIC are further apart than NCCL_NET_GDR_LEVEL allows.

## Impact
A third to two thirds of the expected bandwidth between nodes.

## Diagnosis
Channels `via NET/IB/n` without `/GDRDMA`, `GPU Direct RDMA Disabled for HCA`, no nvidia_peermem in lsmod. That some far
pairs of GPU and NIC are disabled is normal as long as the channels in use have it.

## Mitigation
modprobe nvidia-peermem (rebuild the driver after installing OFED), or open kernel modules with kernel 5.12 or later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement, distinct_hosts
from ddiag.model.signals_incident import Events, NodeFacts, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.transports import over_net

RULE = Rule(
    id="DD936",
    root_cause="RC-36",
    needs=(Events,),
    optional=(NodeFacts, Settings, Placement),
    capture="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH and lsmod of each node",
    symptom="30 % of the expected bandwidth between nodes although InfiniBand is used",
    evidence="channels via NET/IB without GDRDMA, GPU Direct RDMA Disabled, nvidia_peermem not loaded",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None and events.has("nccl.channel", "nccl.gdr", "nccl.memlock")
    ),
    explained_by=("DD926", "DD913", "DD914"),
)
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem", "ib_peer_mem")


@dataclass(frozen=True)
class Limits:
    with_gdr_share: float = 0.5
    """From this part of a host's RDMA channels with GPUDirect on, it works there."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts, placement = signals[Events], signals.get(NodeFacts), signals.get(Placement)
    channels = [event for event in over_net(events, sockets=False) if event.word("net").startswith("IB")]
    without = _without(channels, limits)
    off = [event for event in events.of("nccl.gdr") if not event.get("enabled") and event.get("gpu") is None]
    refused = [event for event in events.of("nccl.memlock") if "Bad address" in event.word("error")]
    unloaded = _unloaded(facts)
    pinned = _pinned(signals.get(Settings))
    if not (without or refused or (off and not channels)):
        return
    seen = [*without, *off, *refused]
    reason = bool(off or refused or unloaded or pinned)
    hosts = hosts_among(seen, placement)
    rest = [host for host in distinct_hosts(event.host for event in channels) if host not in hosts]
    yield Finding(
        title=f"GPUDirect RDMA is off on {name_hosts(hosts)}"
        + (", while its peers have it" if rest else "")
        + (": nvidia_peermem is not loaded" if unloaded else f": {pinned}" if pinned else ""),
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if without and reason else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts),
        evidence=(*lines("channel", without, 2), *lines("NCCL", off, 2), *lines("refused", refused, 2), *_rows(facts)),
        fix=(
            *((f"unset {pinned.split('=')[0]}",) if pinned else ()),
            "modprobe nvidia-peermem on every node (at boot: /etc/modules-load.d); rebuild the driver after OFED",
            "or the open kernel modules with kernel 5.12 or later (DMA-BUF); switch PCIe ACS off on the bridges",
        ),
        verify="lsmod | grep peermem; NCCL_DEBUG=INFO … | grep -c GDRDMA is not 0; all_reduce_perf on two nodes",
        why="the channels between nodes are RDMA without GDRDMA" if without else "NCCL says so",
        doubt="" if reason else "the log does not say why; cloud machines without GPUDirect look the same",
    )


def _without(channels: list[Event], limits: Limits) -> list[Event]:
    """RDMA channels without GPUDirect, of hosts on which most have none."""
    found = []
    for host in {event.host for event in channels}:
        own = [event for event in channels if event.host == host]
        bare = [event for event in own if not event.get("gdr")]
        if len(own) - len(bare) < limits.with_gdr_share * len(own):
            found += bare
    return sorted(found, key=channels.index)


def _unloaded(facts: NodeFacts | None) -> bool:
    """lsmod is there, and lists none of the modules that serve GPUDirect."""
    if facts is None or not facts.of("kernel.modules_listed"):
        return False
    return not any(fact.text in _PEER_MODULES for fact in facts.of("kernel.module"))


def _pinned(settings: Settings | None) -> str:
    if settings is None:
        return ""
    for name, off in (
        ("NCCL_NET_GDR_LEVEL", ("LOC", "0")),
        ("NCCL_NET_GDR_DISABLE", ("1",)),
        ("NCCL_IB_CUDA_SUPPORT", ("0",)),
    ):
        for one in settings.of("env", name):
            if one.value.upper() in off:
                return f"{name}={one.value}"
    return ""


def _rows(facts: NodeFacts | None) -> tuple[Evidence, ...]:
    listed = facts.of("kernel.modules_listed") if facts is not None else ()
    return tuple(shown("nvidia_peermem in lsmod", fact, "no") for fact in listed[:1]) if _unloaded(facts) else ()
