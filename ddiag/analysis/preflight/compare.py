"""Several nodes side by side: what most have, and who differs from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ddiag.model.preflight import Difference, NodeReport

STEADY = (
    "gpu.count", "gpu.name", "gpu.memory.total_bytes", "gpu.pcie.width.max", "gpu.pcie.gen.max",
    "gpu.pcie.width.current",
    "gpu.power.limit_w", "gpu.clock.sm.max_mhz", "gpu.ecc.enabled", "gpu.p2p.pairs_without", "gpu.nvlink.up",
    "driver.version", "driver.cuda", "package.version", "nccl.packages", "nccl.replaced_by_environment", "env",
    "limit.memlock_bytes", "limit.nofile", "limit.nproc", "shm.size_bytes", "cpu.count", "cpu.allowed", "cpu.governor",
    "cgroup.cpus", "cgroup.memory_bytes", "numa.nodes", "memory.total_bytes", "kernel.release", "sysctl.numa_balancing",
    "module.loaded", "rdma.devices", "rdma.state", "rdma.rate_gbps", "net.mtu", "iommu.groups", "iommu.passthrough",
    "pci.acs_bridges", "clock.synchronised", "disk.file_system",
)  # fmt: skip
"""Facts that should be the same on all nodes of a job; what changes by the minute (load, temperature) is not here."""
OWN = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "SLURM_NODEID", "SLURM_PROCID", "SLURMD_NODENAME", "MASTER_ADDR"})
"""Variables that differ from node to node by design."""
NEAR = 0.01
"""Numbers of bytes this close (share) are the same: kernels reserve a little more here and there."""


def odd_ones_out(reports: Sequence[NodeReport]) -> tuple[Difference, ...]:
    """Differences between nodes, those of few nodes first. Fewer than two reports have none."""
    if len(reports) < 2:
        return ()
    values: dict[tuple[str, str | None], dict[str, str]] = defaultdict(dict)
    for number, report in enumerate(reports):
        for fact in report.facts:
            if fact.key in STEADY and not (fact.key == "env" and fact.device in OWN):
                values[fact.key, fact.device][_name(reports, number)] = str(_rounded(fact.key, fact.value))
    names = [_name(reports, number) for number in range(len(reports))]
    found = [one for (key, device), have in values.items() for one in _differences(key, device, have, names)]
    return tuple(sorted(found, key=lambda one: (not one.decided, len(one.hosts), one.key, one.device or "", one.value)))


def _name(reports: Sequence[NodeReport], number: int) -> str:
    """The host's name; with its file where several reports are of one host."""
    report = reports[number]
    same = sum(other.host == report.host for other in reports)
    return report.host if same == 1 else f"{report.host} ({report.source or number + 1})"


def _rounded(key: str, value: object) -> object:
    if key.endswith("_bytes") and isinstance(value, int) and value > 0:
        step = max(int(value * NEAR), 1)
        magnitude = 1 << (step.bit_length() - 1)
        return round(value / magnitude) * magnitude
    return value


def _differences(key: str, device: str | None, have: dict[str, str], names: Sequence[str]) -> list[Difference]:
    by_value: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_value[have.get(name, "not there")].append(name)
    if len(by_value) == 1:
        return []
    usual, count = Counter({value: len(hosts) for value, hosts in by_value.items()}).most_common(1)[0]
    decided = count > len(names) / 2
    return [
        Difference(key, device, usual, tuple(hosts), value, count, decided)
        for value, hosts in by_value.items()
        if value != usual
    ]
