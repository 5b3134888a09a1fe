"""Interfaces, names, ports, RDMA and what stands between PCI devices."""

from __future__ import annotations

from collections.abc import Iterator

from ddiag.analysis.preflight.words import listed
from ddiag.model.preflight import Check, NodeReport, Outcome

FEW_ERRORS = 100


def checks(report: NodeReport) -> Iterator[Check]:
    """See the module."""
    yield from _interface(report)
    yield from _named(report)
    yield from _own_name(report)
    yield from _port(report)
    yield from _rdma(report)
    yield from _peer_to_peer(report)


def usable_interfaces(report: NodeReport) -> list[str]:
    """Interfaces that other nodes can reach: up, with an address, neither loopback nor of a container engine."""
    up = {name for name, value in report.of("net.up") if value}
    addressed = {name for name, value in report.of("net.addressed") if value}
    virtual = {name for name, value in report.of("net.virtual") if value}
    return sorted((up & addressed) - virtual)


def _interface(report: NodeReport) -> Iterator[Check]:
    if not any(True for _ in report.of("net.up")):
        return
    usable, chosen = usable_interfaces(report), report.text("env.NCCL_SOCKET_IFNAME")
    if not usable:
        yield Check(
            "network interface",
            Outcome.WARN,
            "none but loopback and container bridges",
            "a job on this node alone works; nodes cannot find each other",
            "start the container with --network=host, or attach the cluster's network",
            "network",
        )
    elif len(usable) > 1 and not chosen:
        yield Check(
            "network interface",
            Outcome.WARN,
            f"{len(usable)} are possible: {listed(usable)}",
            "NCCL and gloo choose by themselves, and may choose differently on other nodes: the job then hangs "
            "at its start",
            f"export NCCL_SOCKET_IFNAME={usable[0]} GLOO_SOCKET_IFNAME={usable[0]} on all nodes (the one with "
            f"the cluster's addresses)",
            "network",
        )
    else:
        yield Check("network interface", Outcome.OK, chosen or usable[0], area="network")


def _named(report: NodeReport) -> Iterator[Check]:
    """NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME: prefixes (``ib``), exact (``=eth0``) or excluded (``^docker``)."""
    names = [name for name, _ in report.of("net.up")]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        wanted = report.text(f"env.{variable}")
        if not wanted or wanted.startswith("^"):
            continue
        exact = variable.startswith("GLOO") or wanted.startswith("=")
        parts = [part.strip() for part in wanted.lstrip("=").split(",") if part.strip()]
        if not any(name == part if exact else name.startswith(part) for part in parts for name in names):
            yield Check(
                variable,
                Outcome.FAIL,
                f"{wanted} matches no interface here ({listed(names)})",
                "the job ends at its start with 'no socket interface found' on this node",
                f"set {variable} to an interface that every node has, or unset it",
                "network",
            )


def _own_name(report: NodeReport) -> Iterator[Check]:
    if report.get("net.name_is_loopback") is True:
        yield Check(
            "own host name",
            Outcome.WARN,
            f"{report.host} stands for a loopback address",
            "gloo binds to the address of the host name: other nodes would connect to themselves. Jobs on one "
            "node are fine",
            "put the node's real address into /etc/hosts (remove the 127.0.1.1 line), or set GLOO_SOCKET_IFNAME",
            "network",
        )


def _port(report: NodeReport) -> Iterator[Check]:
    if report.get("net.default_port_in_use") is True:
        yield Check(
            "port 29500",
            Outcome.WARN,
            "somebody listens on it",
            "torchrun's default port is taken by a running or a stale job: 'address already in use'",
            "torchrun --rdzv-endpoint=localhost:0 (one node) or --master-port N; who it is: ss -ltnp sport = :29500",
            "network",
        )


def _rdma(report: NodeReport) -> Iterator[Check]:
    states = dict(report.of("rdma.state"))
    if not states:
        return
    down = sorted(name for name, state in states.items() if state != "ACTIVE")
    rates = {name: float(rate) for name, rate in report.of("rdma.rate_gbps") if name not in down}
    best = max(rates.values(), default=0.0)
    slow = sorted(name for name, rate in rates.items() if rate < best and best >= 100)
    if down:
        yield Check(
            "RDMA ports", Outcome.WARN, f"{listed(down)} not ACTIVE, of {len(states)}",
            "NCCL leaves them out (or fails on this node only): one rail less makes every step of the whole job slower",
            "ibstat; check cable, switch port and subnet manager; name the good ones in NCCL_IB_HCA", "network",
        )  # fmt: skip
    elif slow:
        yield Check(
            "RDMA ports", Outcome.WARN, f"{listed(slow)} slower than {best:.0f} Gb/s",
            "a link that trained at a lower rate slows all collectives", "ibstat; reseat or replace the cable",
            "network",
        )  # fmt: skip
    else:
        yield Check("RDMA ports", Outcome.OK, f"{len(states)} ACTIVE, {best:.0f} Gb/s", area="network")
    for name, errors in report.of("rdma.symbol_error"):
        if float(errors) > FEW_ERRORS:
            yield Check(
                f"cable of {name}", Outcome.WARN, f"{float(errors):,.0f} symbol errors since the counters were cleared",
                "bad cables retransmit: throughput drops before the link fails",
                "perfquery -x; clean or replace the cable",
                "network",
            )  # fmt: skip
    loaded = {name for name, value in report.of("module.loaded") if value}
    if (report.number("gpu.count") or 0) and not loaded & {"nvidia_peermem", "nv_peer_mem"}:
        yield Check(
            "GPUDirect RDMA", Outcome.WARN, "module nvidia_peermem is not loaded",
            "data between nodes goes through host memory (unless NCCL can use DMA-BUF): less bandwidth, more CPU",
            "modprobe nvidia-peermem; NCCL_DEBUG=INFO then shows 'via NET/IB/0/GDRDMA'", "network",
        )  # fmt: skip


def _peer_to_peer(report: NodeReport) -> Iterator[Check]:
    gpus, bridges = report.number("gpu.count") or 0, report.number("pci.acs_bridges")
    if gpus < 2:
        return
    if bridges:
        yield Check(
            "PCI access control (ACS)", Outcome.WARN, f"on in {bridges:.0f} bridges",
            "copies between GPUs take the way over the root complex, or hang; machines that run virtual "
            "machines need it",
            "switch ACS off in the BIOS, or setpci on the bridges (see NCCL's troubleshooting page)", "network",
        )  # fmt: skip
    groups = report.number("iommu.groups") or 0
    if groups and report.get("iommu.passthrough") is False:
        yield Check(
            "IOMMU", Outcome.WARN, f"translating ({groups:.0f} groups)",
            "an IOMMU that translates addresses slows or breaks direct copies between PCI devices",
            "boot with iommu=pt (AMD: amd_iommu=on iommu=pt)", "network",
        )  # fmt: skip
