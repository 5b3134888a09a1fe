"""NVIDIA devices through NVML: links, memory health, clocks, who uses them, and which can reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddiag.schema.node import CouldNot, Fact
from ddiag.supervise.devices import Devices, NoDevicesError

_KEYS = {
    "name": "gpu.name",
    "uuid": "gpu.uuid",
    "bus_id": "gpu.bus_id",
    "memory_bytes": "gpu.memory.total_bytes",
    "numa_node": "gpu.numa_node",
    "max_pcie_gen": "gpu.pcie.gen.max",
    "max_pcie_width": "gpu.pcie.width.max",
    "max_sm_mhz": "gpu.clock.sm.max_mhz",
    "power_limit_w": "gpu.power.limit_w",
    "ecc": "gpu.ecc.enabled",
    "pcie_gen": "gpu.pcie.gen.current",
    "pcie_width": "gpu.pcie.width.current",
    "pcie_replays": "gpu.pcie.replays",
    "sm_mhz": "gpu.clock.sm.current_mhz",
    "temp_c": "gpu.temperature_c",
    "power_w": "gpu.power.current_w",
    "util": "gpu.utilization_percent",
    "used_bytes": "gpu.memory.used_bytes",
    "reasons": "gpu.clock.reasons_mask",
    "ecc_corrected": "gpu.ecc.corrected",
    "ecc_uncorrected": "gpu.ecc.uncorrected",
}
_P2P_READ = 0
"""NVML_P2P_CAPS_INDEX_READ; pynvml's constant of that name is a tuple by mistake."""
_REMAPPED = ("correctable", "uncorrectable", "pending", "failed")
"""nvmlDeviceGetRemappedRows: numbers of rows, then whether a remapping is pending, whether one failed."""


def facts() -> Iterator[Fact | CouldNot]:
    """See the module."""
    try:
        devices = Devices()
    except NoDevicesError as error:
        yield Fact("gpu.count", 0)
        yield CouldNot("GPUs", str(error))
        return
    software, fixed, state = devices.software(), devices.facts(), devices.read()
    yield Fact("gpu.count", len(fixed))
    if "driver" in software:
        yield Fact("driver.nvml_version", str(software["driver"]))
    if "cuda_driver" in software:
        yield Fact("driver.cuda", f"{software['cuda_driver'] // 1000}.{software['cuda_driver'] % 1000 // 10}")
    for index, (steady, now) in enumerate(zip(fixed, state, strict=True)):
        yield from _of_one(f"gpu{index}", {**steady, **now})
    for event in devices.events():
        if event["kind"] == "device_processes":
            yield Fact("gpu.processes", len(event["pids"]), f"gpu{event['device']}")
    yield from _reach(len(fixed))


def _of_one(device: str, entry: dict[str, Any]) -> Iterator[Fact]:
    for name, key in _KEYS.items():
        value = entry.get(name)
        if isinstance(value, (int, float, str, bool)):
            yield Fact(key, value, device)
    for name, value in zip(_REMAPPED, entry.get("remapped_rows") or (), strict=False):
        yield Fact(f"gpu.ecc.remapped.{name}", int(value), device)


def _reach(count: int) -> Iterator[Fact | CouldNot]:
    """Pairs that cannot copy to each other directly, and NVLinks that are down."""
    import pynvml

    nvml: Any = pynvml
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        apart = [
            f"gpu{a}-gpu{b}"
            for a in range(count)
            for b in range(a + 1, count)
            if _status(nvml, handles[a], handles[b]) != nvml.NVML_P2P_STATUS_OK
        ]
    except (AttributeError, nvml.NVMLError) as error:
        yield CouldNot("which GPUs reach each other (P2P)", str(error))
        return
    yield Fact("gpu.p2p.pairs_without", len(apart))
    if apart:
        yield Fact("gpu.p2p.without", ", ".join(apart[:8]))
    for index, handle in enumerate(handles):
        yield from _nvlinks(nvml, handle, f"gpu{index}")


def _status(nvml: Any, one: Any, other: Any) -> Any:
    return nvml.nvmlDeviceGetP2PStatus(one, other, _P2P_READ)


def _nvlinks(nvml: Any, handle: Any, device: str) -> Iterator[Fact]:
    up = down = 0
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:
            break
        up, down = up + active, down + (not active)
    if up or down:
        yield Fact("gpu.nvlink.up", up, device)
        yield Fact("gpu.nvlink.down", down, device)
