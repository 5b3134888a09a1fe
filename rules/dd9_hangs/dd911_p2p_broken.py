"""Peer-to-peer copies between GPUs hang or corrupt data: ACS, IOMMU or the platform redirect them.

## Meaning
Everything connects, then the first collective never ends: PCIe bridges with ACS send peer traffic through the root
complex or the IOMMU, where it is lost or reordered. Consumer boards and virtual machines show it most.

## Impact
Two GPUs may work, four hang at the first all-reduce; or results are wrong.

## Diagnosis
Channels `via P2P`, all ranks in the first collective with equal sequence and size, GPUs at 100 % near idle power, and
`ACSCtl: … ReqRedir+ CmpltRedir+` on a bridge, IOMMU faults, or a kernel without iommu=pt. Several nodes in one hang
are rather the network.

## Mitigation
Switch ACS off on the bridges (BIOS, setpci), iommu=pt; NCCL_P2P_DISABLE=1 to get by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event, NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts, Stall
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.transports import on_transport
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD911",
    root_cause="RC-11",
    needs=(Events,),
    optional=(NodeFacts, Placement, Stall),
    capture="NCCL_DEBUG=INFO log, lspci -vvv, /proc/cmdline and nvidia-smi while it hangs",
    symptom="two GPUs work, four hang at the first all-reduce; NCCL_P2P_DISABLE=1 helps",
    evidence="P2P channels, the first collective stuck on all ranks, ACS redirect on bridges, 100 % busy at idle power",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and (events.has("nccl.channel", "node.acs", "kernel.iommu_fault", "nccl_tests.row"))
    ),
    explained_by=("DD907", "DD934"),
)
_FIX = (
    "switch ACS off: BIOS, or on each bridge `setpci -s BDF ECAP_ACS+6.w=0000` at boot",
    "kernel command line iommu=pt (or the IOMMU off) and reboot; consumer boards: driver 550 or later",
    "until then NCCL_P2P_DISABLE=1 (slower), or NCCL_P2P_LEVEL=PIX where only distant pairs fail",
)


@dataclass(frozen=True)
class Limits:
    early_seq: int = 5
    """A call up to this number counts as the first."""
    busy_pct: float = 95.0
    idle_power_share: float = 0.45
    """Power / limit up to which a GPU at full utilisation only spins."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, facts, placement = signals[Events], signals.get(NodeFacts), signals.get(Placement)
    acs = [e for e in events.of("node.acs") if "ReqRedir" in e.word("flags") or "CmpltRedir" in e.word("flags")]
    faults = events.of("kernel.iommu_fault")
    peers = on_transport(events, "p2p")
    wrong = [event for event in events.of("nccl_tests.row") if (event.integer("wrong") or 0) > 0]
    stuck = _stuck(events, signals.get(Stall), limits)
    spinning = _spinning(facts, limits)
    one_node = placement is None or len(placement.hosts) <= 1
    hosts = hosts_among([*acs, *faults, *peers], placement)
    proof = bool(acs or faults)
    if wrong and (peers or proof):
        yield _finding(wrong, "copies between GPUs give wrong results", hosts, events, facts, sure=proof)
    elif stuck and peers and (proof or (spinning and one_node)):
        busy = f", {len(spinning)} GPUs busy at idle power" if spinning else ""
        what = f"the first collective hangs on all ranks over P2P channels{busy}"
        yield _finding([*stuck, *peers], what, hosts, events, facts, sure=proof and one_node, spinning=spinning)
    elif acs and peers:
        yield _possible(acs, hosts)


def _stuck(events: Events, stall: Stall | None, limits: Limits) -> list[Event]:
    """Time-outs of one and the same early call on several ranks, with equal sizes: nobody is missing in the call."""
    found = [e for e in events.of("c10d.watchdog_timeout") if e.get("seq") is not None]
    same = {(e.get("seq"), e.word("op"), e.get("numel_in")) for e in found}
    ranks = {e.rank for e in found}
    if len(same) != 1 or len(ranks) < 2 or (found[0].integer("seq") or 0) > limits.early_seq:
        return []
    return [] if stall is not None and stall.culprits else found


def _spinning(facts: NodeFacts | None, limits: Limits) -> list[NodeFact]:
    """Power of GPUs that are busy all the time and draw next to nothing."""
    if facts is None:
        return []
    busy = {(f.host, f.device) for f in facts.of("gpu.utilization_pct") if (f.number or 0) >= limits.busy_pct}
    limit = {(f.host, f.device): f.number for f in facts.of("gpu.power_limit_w")}
    found = []
    for fact in facts.of("gpu.power_w"):
        most = limit.get((fact.host, fact.device))
        if (fact.host, fact.device) in busy and fact.number and most and fact.number <= limits.idle_power_share * most:
            found.append(fact)
    return found


def _finding(
    seen: Sequence[Event],
    what: str,
    hosts: tuple[str, ...],
    events: Events,
    facts: NodeFacts | None,
    *,
    sure: bool,
    spinning: Sequence[NodeFact] = (),
) -> Finding:
    acs, faults = events.of("node.acs"), events.of("kernel.iommu_fault")
    power: tuple[Evidence, ...] = tuple(
        shown(f"{f.device} power at full use", f, f.number or 0, "W") for f in spinning[:2]
    )
    command = [f for f in (facts.of("kernel.cmdline") if facts is not None else ()) if "iommu=pt" not in f.text]
    cause = ": ACS redirects peer traffic" if acs else ": the IOMMU refuses it" if faults else ""
    return Finding(
        title=f"{what} on {name_hosts(hosts)}{cause}",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, where="PCIe peer-to-peer"),
        evidence=(
            *lines("stuck", seen, 2),
            *lines("ACS", acs, 2),
            *lines("IOMMU", faults, 2),
            *power,
            *(shown("kernel command line without iommu=pt", fact) for fact in command[:1]),
        ),
        fix=_FIX,
        verify="NCCL_P2P_DISABLE=1 ./all_reduce_perf -b 8 -e 1G -f 2 -g 8 passes; after the fix it passes without it",
        why="every rank is in the same call with the same size, and the path between GPUs is redirected"
        if acs or faults
        else "every rank is in the same call with the same size, and the GPUs only spin",
        doubt="" if sure else "lspci -vvv (ACSCtl) and NCCL_P2P_DISABLE=1 would decide",
        state=State.STALLED,
        began_ns=began(seen),
    )


def _possible(acs: Sequence[Event], hosts: tuple[str, ...]) -> Finding:
    return Finding(
        title=f"ACS redirects traffic between GPUs on {name_hosts(hosts)}: no harm seen, but slower and fragile",
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts),
        evidence=lines("ACS", acs),
        fix=_FIX[:1],
        verify="p2pBandwidthLatencyTest before and after",
        why="requests and completions of peers go up to the root complex",
    )
