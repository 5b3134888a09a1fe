"""NCCL fell back to TCP sockets between nodes.

## Meaning
Without libibverbs, devices or plugin in the image, or with NCCL_IB_DISABLE=1 left over from a tutorial, NCCL quietly
takes sockets.

## Impact
A tenth of the bandwidth between nodes, and CPU time for it: adding nodes makes training slower.

## Diagnosis
Channels `via NET/Socket`, and why: `Failed to open libibverbs`, `NET/IB : No device found`, the variable. On one node
`Using network Socket` means nothing: no channel goes over it.

## Mitigation
Expose /dev/infiniband, install rdma-core (or aws-ofi-nccl) in the image, unset NCCL_IB_DISABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement, distinct_hosts
from ddiag.model.signals_incident import Events, NodeFacts, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.proof import lines, name_hosts, shown
from ddiag.rulekit.transports import over_net, switched_on

RULE = Rule(
    id="DD927",
    root_cause="RC-27",
    needs=(Events,),
    optional=(Settings, NodeFacts, Placement),
    capture="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV,GRAPH on all nodes",
    symptom="several nodes are slower than one",
    evidence="channels via NET/Socket, no libibverbs, no device, NCCL_IB_DISABLE=1",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None and events.has("nccl.network", "nccl.channel", "nccl.no_rdma")
    ),
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",),
)
_WORDS = {
    "no_library": "libibverbs is not in the image",
    "no_device": "no RDMA device is visible",
    "no_plugin": "the network plugin does not work",
}


@dataclass(frozen=True)
class Limits:
    nodes: int = 2
    """Sockets matter from this number of nodes on."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, settings, placement = signals[Events], signals.get(Settings), signals.get(Placement)
    channels = over_net(events, sockets=True)
    plain = [event for event in events.of("nccl.network") if event.word("name").lower().startswith("socket")]
    hosts = distinct_hosts(event.host for event in (channels or plain))
    if not channels and not (len(hosts) >= limits.nodes or (plain and _spans(placement, limits))):
        return
    reasons = events.of("nccl.no_rdma")
    disabled = switched_on(settings, "NCCL_IB_DISABLE")
    forced = settings is not None and any("socket" in one.value.lower() for one in settings.of("env", "NCCL_NET"))
    rdma = distinct_hosts(event.host for event in over_net(events, sockets=False))
    why = "NCCL_IB_DISABLE=1" if disabled else "NCCL_NET=Socket" if forced else _reason(reasons)
    yield Finding(
        title=f"{name_hosts(hosts)} talk{'s' if len(hosts) <= 1 else ''} TCP to other nodes"
        + (f": {why}" if why else "")
        + (f", while RDMA works on {name_hosts(rdma)}" if rdma and not set(rdma) & set(hosts) else ""),
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if why or rdma else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, where=why if disabled or forced else None),
        evidence=(
            *lines("channel", channels, 2),
            *lines("network", plain, 2),
            *lines("reason", reasons, 2),
            *_switches(signals.get(Settings)),
        ),
        fix=(
            *(("unset NCCL_IB_DISABLE and NCCL_NET",) if disabled or forced else ()),
            "containers: --device=/dev/infiniband (Kubernetes: an RDMA device plugin), rdma-core or libibverbs1 in the "
            "image; on AWS aws-ofi-nccl and the EFA device",
            "NCCL_IB_HCA==mlx5_0,… when the wrong devices are taken",
        ),
        verify="NCCL_DEBUG=INFO … | grep -E 'Using network|via NET' shows IB or the plugin; all_reduce_perf, two nodes",
        why="the channels between nodes go over sockets"
        if channels
        else "the network in use is Socket on several nodes",
        doubt="" if why or rdma else "the machines may have no RDMA network at all",
    )


def _spans(placement: Placement | None, limits: Limits) -> bool:
    return placement is not None and len({seat.host for seat in placement.seats if seat.host}) >= limits.nodes


def _reason(reasons: tuple[Event, ...]) -> str:
    return next((_WORDS[event.word("reason")] for event in reasons if event.word("reason") in _WORDS), "")


def _switches(settings: Settings | None) -> tuple[Evidence, ...]:
    if settings is None:
        return ()
    found = [one for name in ("NCCL_IB_DISABLE", "NCCL_NET") for one in settings.of("env", name)]
    return tuple(shown(one.key, one) for one in found[:2])
