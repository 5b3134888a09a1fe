"""Checks of a node: what breaks jobs is told, what is normal is not complained about."""

from __future__ import annotations

import pytest

from ddiag.analysis.preflight import judge, odd_ones_out
from ddiag.model.preflight import UNLIMITED, Check, CouldNot, Fact, NodeReport, Outcome

GIB = 1 << 30
SOUND: dict[tuple[str, str | None], int | float | str | bool] = {
    ("limit.memlock_bytes", None): UNLIMITED, ("limit.nofile", None): 65536, ("cpu.count", None): 96,
    ("cpu.allowed", None): 96, ("cpu.load_1min", None): 1.5, ("memory.total_bytes", None): 2000 * GIB,
    ("memory.available_bytes", None): 1900 * GIB, ("shm.size_bytes", None): 1000 * GIB,
    ("shm.free_bytes", None): 1000 * GIB, ("shm.leftover_files", None): 0, ("disk.free_bytes", "/work"): 900 * GIB,
    ("disk.size_bytes", "/work"): 1000 * GIB, ("net.up", "eth0"): True, ("net.addressed", "eth0"): True,
    ("net.virtual", "eth0"): False, ("net.up", "lo"): True, ("net.addressed", "lo"): False,
    ("net.virtual", "lo"): False,
    ("net.up", "docker0"): True, ("net.addressed", "docker0"): True, ("net.virtual", "docker0"): True,
    ("net.name_is_loopback", None): False, ("net.default_port_in_use", None): False, ("rdma.devices", None): 2,
    ("rdma.state", "mlx5_0:1"): "ACTIVE", ("rdma.state", "mlx5_1:1"): "ACTIVE", ("rdma.rate_gbps", "mlx5_0:1"): 400.0,
    ("rdma.rate_gbps", "mlx5_1:1"): 400.0, ("module.loaded", "nvidia_peermem"): True, ("iommu.groups", None): 0,
    ("iommu.passthrough", None): True, ("gpu.count", None): 2, ("gpu.name", "gpu0"): "H100",
    ("gpu.name", "gpu1"): "H100",
    ("gpu.memory.total_bytes", "gpu0"): 80 * GIB, ("gpu.memory.total_bytes", "gpu1"): 80 * GIB,
    ("gpu.pcie.width.current", "gpu0"): 16, ("gpu.pcie.width.max", "gpu0"): 16, ("gpu.pcie.gen.current", "gpu0"): 1,
    ("gpu.pcie.gen.max", "gpu0"): 5, ("gpu.clock.reasons_mask", "gpu0"): 0x1 | 0x4, ("gpu.temperature_c", "gpu0"): 45,
    ("gpu.p2p.pairs_without", None): 0, ("package.version", "torch"): "2.9.1+cu128", ("driver.cuda", None): "12.8",
    ("clock.synchronised", None): True,
}  # fmt: skip


def node(host: str = "gn01", could_not: tuple[CouldNot, ...] = (), **changes: object) -> NodeReport:
    """The sound node with *changes*: ``shm__size_bytes=1`` is shm.size_bytes; ``gpu0___gpu__temperature_c`` of gpu0."""
    facts = dict(SOUND)
    for name, value in changes.items():
        device, _, key = name.rpartition("___")
        device = device.replace("__", ":")
        assert value is None or isinstance(value, (int, float, str, bool))
        place = (key.replace("__", "."), device or None)
        if value is None:
            facts.pop(place)
        else:
            facts[place] = value
    return NodeReport(host, 1, tuple(Fact(key, value, device) for (key, device), value in facts.items()), could_not)


def bad(report: NodeReport) -> dict[str, Check]:
    return {one.name: one for one in judge(report) if one.outcome in (Outcome.WARN, Outcome.FAIL)}


def test_a_sound_node_has_nothing_to_mend() -> None:
    assert bad(node()) == {}


@pytest.mark.parametrize(
    ("changes", "name", "outcome"),
    [
        ({"shm__size_bytes": 64 << 20, "shm__free_bytes": 64 << 20}, "shared memory", Outcome.FAIL),
        ({"shm__free_bytes": GIB}, "shared memory", Outcome.WARN),
        ({"shm__leftover_files": 12}, "left by earlier jobs", Outcome.WARN),
        ({"limit__memlock_bytes": 64 << 10}, "locked memory", Outcome.FAIL),
        ({"limit__nofile": 1024}, "open files", Outcome.WARN),
        ({"cgroup__cpus": 3.0}, "CPUs", Outcome.FAIL),
        ({"cpu__allowed": 48}, "CPUs", Outcome.WARN),
        ({"cpu__load_1min": 80.0}, "other work", Outcome.WARN),
        ({"cgroup__memory_bytes": 100 * GIB}, "host memory", Outcome.WARN),
        ({"process__blocked": 3}, "blocked processes", Outcome.WARN),
        ({"/work___disk__free_bytes": GIB}, "disk at /work", Outcome.WARN),
        ({"eth0___net__up": False}, "network interface", Outcome.WARN),
        ({"env__NCCL_SOCKET_IFNAME": "bond0"}, "NCCL_SOCKET_IFNAME", Outcome.FAIL),
        ({"env__GLOO_SOCKET_IFNAME": "eth"}, "GLOO_SOCKET_IFNAME", Outcome.FAIL),
        ({"net__name_is_loopback": True}, "own host name", Outcome.WARN),
        ({"net__default_port_in_use": True}, "port 29500", Outcome.WARN),
        ({"mlx5_0__1___rdma__state": "DOWN"}, "RDMA ports", Outcome.WARN),
        ({"mlx5_0__1___rdma__rate_gbps": 200.0}, "RDMA ports", Outcome.WARN),
        ({"nvidia_peermem___module__loaded": False}, "GPUDirect RDMA", Outcome.WARN),
        ({"pci__acs_bridges": 4}, "PCI access control (ACS)", Outcome.WARN),
        ({"iommu__groups": 60, "iommu__passthrough": False}, "IOMMU", Outcome.WARN),
        ({"gpu0___gpu__pcie__width__current": 8}, "PCIe width", Outcome.FAIL),
        ({"gpu1___gpu__ecc__remapped__failed": 1}, "memory repair failed", Outcome.FAIL),
        ({"gpu1___gpu__ecc__remapped__pending": 1}, "memory repair pending", Outcome.WARN),
        ({"gpu0___gpu__clock__reasons_mask": 0x40}, "clocks held down by hardware", Outcome.FAIL),
        ({"gpu0___gpu__memory__used_bytes": 30 * GIB}, "GPU in use", Outcome.WARN),
        ({"gpu0___gpu__nvlink__down": 2}, "NVLink", Outcome.FAIL),
        ({"gpu__p2p__pairs_without": 1, "gpu__p2p__without": "gpu0-gpu1"}, "GPU to GPU (P2P)", Outcome.WARN),
        ({"gpu1___gpu__name": "A100"}, "GPUs", Outcome.WARN),
        ({"torch___package__version": "2.9.1+cpu"}, "PyTorch", Outcome.FAIL),
        ({"torch___package__version": "2.13.0+cu130"}, "PyTorch and driver", Outcome.FAIL),
        ({"nccl__packages": "nvidia-nccl-cu12 2.27.5, nvidia-nccl-cu13 2.28.3"}, "NCCL", Outcome.WARN),
        ({"clock__synchronised": False}, "clock", Outcome.WARN),
    ],
)
def test_what_breaks_or_slows_jobs_is_told_with_meaning_and_fix(
    changes: dict[str, object], name: str, outcome: Outcome
) -> None:
    found = bad(node(**changes))
    assert list(found) == [name]
    assert found[name].outcome is outcome
    assert found[name].meaning
    assert found[name].fix


@pytest.mark.parametrize(
    "changes",
    [
        {"limit__memlock_bytes": 8 << 20, "rdma__devices": 0},
        {"gpu0___gpu__pcie__gen__current": 1},
        {"gpu0___gpu__clock__reasons_mask": 0x5},
        {"torch___package__version": "2.9.1+cu129"},
        {"env__NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"env__NCCL_SOCKET_IFNAME": "eth"},
        {"env__NCCL_SOCKET_IFNAME": "=eth0"},
        {"iommu__groups": 60},
        {"cgroup__memory_bytes": 1900 * GIB},
    ],
    ids=str,
)
def test_what_is_normal_is_not_complained_about(changes: dict[str, object]) -> None:
    """Memlock without RDMA, PCIe generation 1 at idle, a software power cap, a minor CUDA version, name patterns."""
    assert bad(node(**changes)) == {}


def test_two_networks_and_no_choice_is_a_trap() -> None:
    two = {"ib0___net__up": True, "ib0___net__addressed": True, "ib0___net__virtual": False}
    assert list(bad(node(**two))) == ["network interface"]
    assert bad(node(**two, env__NCCL_SOCKET_IFNAME="ib0")) == {}


def test_what_could_not_be_looked_at_is_said() -> None:
    checks = judge(node(could_not=(CouldNot("GPUs", "no driver"),)))
    assert [(one.name, one.found) for one in checks if one.outcome is Outcome.SKIPPED] == [("GPUs", "no driver")]


def test_the_odd_node_out_is_named_with_what_others_have() -> None:
    nodes = [node(f"gn{k:02d}") for k in range(1, 8)] + [node("gn08", gpu0___gpu__pcie__width__current=8)]
    (found,) = odd_ones_out(nodes)
    assert (found.key, found.device, found.hosts) == ("gpu.pcie.width.current", "gpu0", ("gn08",))
    assert (found.value, found.usual, found.majority, found.decided) == ("8", "16", 7, True)


def test_a_fact_that_one_node_lacks_is_a_difference() -> None:
    nodes = [node("a"), node("b"), node("c", clock__synchronised=None)]
    assert [(one.hosts, one.value) for one in odd_ones_out(nodes)] == [(("c",), "not there")]


def test_two_against_two_blames_nobody() -> None:
    nodes = [node("a"), node("b"), node("c", driver__cuda="12.4"), node("d", driver__cuda="12.4")]
    (found,) = odd_ones_out(nodes)
    assert not found.decided


def test_what_changes_by_the_minute_or_by_design_is_no_difference() -> None:
    busy = node("b", cpu__load_1min=50.0, gpu0___gpu__temperature_c=70, memory__total_bytes=2000 * GIB - 4096)
    assert odd_ones_out([node("a"), busy, node("c")]) == ()
