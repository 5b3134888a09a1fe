"""``nvidia-smi -q`` (whole or ``-d SECTION``), all drivers: section headers without a colon, then ``key : value``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ddiag.ingest.logs.bus_ids import BUS, bus_id
from ddiag.ingest.logs.facts import fact
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import NodeFact, Seen, Setting

_GPU = re.compile(rf"^\s*GPU ([0-9A-Fa-f]{{4,8}}:{BUS})\s*$")
_PAIR = re.compile(r"^\s*(\S[^:]*?)\s*: (.*?)\s*$")
MOST_PAIRS = 24
"""Lines of one section that are looked at."""

_SECTIONS: dict[str, dict[str, str]] = {
    "Fabric": {"State": "gpu.fabric.state", "Status": "gpu.fabric.status"},
    "PCIe Generation": {"Max": "gpu.pcie.gen_max", "Current": "gpu.pcie.gen"},
    "Link Width": {"Max": "gpu.pcie.width_max", "Current": "gpu.pcie.width"},
    "Remapped Rows": {
        "Uncorrectable Error": "gpu.ecc.remapped_uncorrectable",
        "Pending": "gpu.ecc.remap_pending",
        "Remapping Failure Occurred": "gpu.ecc.remap_failed",
    },
    "Retired Pages": {
        "Pending Page Blacklist": "gpu.ecc.retired_pending",
        "Pending": "gpu.ecc.retired_pending",
    },
    "Utilization": {"Gpu": "gpu.utilization_pct", "GPU": "gpu.utilization_pct", "Memory": "gpu.memory_utilization_pct"},
    "Temperature": {"GPU Current Temp": "gpu.temperature_c", "Memory Current Temp": "gpu.memory_temperature_c"},
    "FB Memory Usage": {"Total": "gpu.memory_total_mib", "Used": "gpu.memory_used_mib"},
    "Clocks": {"SM": "gpu.clock.sm_mhz", "Memory": "gpu.clock.memory_mhz"},
    "Max Clocks": {"SM": "gpu.clock.sm_max_mhz"},
    "MIG Mode": {"Current": "gpu.mig.mode"},
    "Ecc Mode": {"Current": "gpu.ecc.mode"},
    "ECC Mode": {"Current": "gpu.ecc.mode"},
    "Volatile": {
        "SRAM Uncorrectable": "gpu.ecc.uncorrectable",
        "DRAM Uncorrectable": "gpu.ecc.uncorrectable",
        "SRAM Uncorrectable Parity": "gpu.ecc.uncorrectable",
        "SRAM Uncorrectable SEC-DED": "gpu.ecc.uncorrectable",
    },
}
_POWER = {
    "Power Draw": "gpu.power_w",
    "Instantaneous Power Draw": "gpu.power_w",
    "Power Limit": "gpu.power_limit_w",
    "Current Power Limit": "gpu.power_limit_w",
    "Default Power Limit": "gpu.power_default_w",
}
_SECTIONS |= {"Power Readings": _POWER, "GPU Power Readings": _POWER}
_REASONS = {
    "Idle": "idle",
    "Applications Clocks Setting": "applications_clocks",
    "SW Power Cap": "sw_power_cap",
    "HW Slowdown": "hw_slowdown",
    "HW Thermal Slowdown": "hw_thermal_slowdown",
    "HW Power Brake Slowdown": "hw_power_brake",
    "Sync Boost": "sync_boost",
    "SW Thermal Slowdown": "sw_thermal_slowdown",
    "Display Clock Setting": "display_clocks",
}
_EVENTS = ("Clocks Throttle Reasons", "Clocks Event Reasons")
_PLAIN = {
    "Product Name": "gpu.name",
    "GPU UUID": "gpu.uuid",
    "VBIOS Version": "gpu.vbios_version",
    "Driver Version": "gpu.driver_version",
    "Performance State": "gpu.pstate",
    "Replays Since Reset": "gpu.pcie.replays",
}
_FLAGS = {"Yes": 1.0, "No": 0.0, "Active": 1.0, "Not Active": 0.0}


class NvidiaSmiQuery:
    """Facts of the GPU whose heading came last; without a heading, of the node's only GPU (device None)."""

    needles: tuple[str, ...] = (
        "GPU 0000",
        *_SECTIONS,
        *_EVENTS,
        "Product Name",
        "GPU UUID",
        "VBIOS Version",
        "Driver Version",
        "Performance State",
        "Replays Since Reset",
        "Process ID",
    )

    def __init__(self) -> None:
        self._device: str | None = None

    def line(self, line: Line) -> Iterator[Seen]:
        gpu = _GPU.search(line.text)
        if gpu is not None:
            self._device = bus_id(gpu[1])
            return
        title = line.text.strip()
        if title in _EVENTS:
            yield from self._pairs(line, _reason)
        elif title in _SECTIONS:
            yield from self._pairs(line, _SECTIONS[title].get)
        else:
            yield from self._plain(line)

    def end(self) -> Iterable[Seen]:
        return ()

    def _pairs(self, line: Line, key_of: Callable[[str], str | None]) -> Iterator[NodeFact]:
        for after in line.following(MOST_PAIRS):
            pair = _PAIR.search(after.text)
            if pair is None:
                return
            key = key_of(pair[1])
            if key is not None and pair[2] not in ("", "N/A", "None"):
                yield fact(key, pair[2], self._device, _FLAGS.get(pair[2]))
            elif key is not None and key.startswith("gpu.fabric"):
                yield NodeFact(key, pair[2], device=self._device)

    def _plain(self, line: Line) -> Iterator[Seen]:
        pair = _PAIR.search(line.text)
        if pair is None or pair[2] in ("", "N/A"):
            return
        if pair[1] == "Process ID":
            yield from self._process(line, pair[2])
        elif pair[1] in _PLAIN:
            key = _PLAIN[pair[1]]
            whole_node = key == "gpu.driver_version"
            yield NodeFact(key, pair[2], device=None if whole_node else self._device)
            if whole_node:
                yield Setting("driver", "nvidia", pair[2])

    def _process(self, line: Line, pid: str) -> Iterator[NodeFact]:
        found = {}
        for after in line.following(4):
            pair = _PAIR.search(after.text)
            if pair is None or pair[1] == "Process ID":
                break
            found[pair[1]] = pair[2]
        yield fact(
            "gpu.process", f"{pid} {found.get('Name', '')}", self._device, _mib(found.get("Used GPU Memory", ""))
        )


def _mib(text: str) -> float:
    first = text.split(" ", maxsplit=1)[0]
    return float(first) if first.isdigit() else 0.0


def _reason(name: str) -> str | None:
    found = _REASONS.get(name)
    return f"gpu.throttle.{found}" if found else None
