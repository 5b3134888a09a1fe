"""``nvidia-smi --query-gpu=… --format=csv`` and ``--query-compute-apps``: one header line, then rows of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.bus_ids import bus_id
from ddiag.ingest.logs.facts import fact
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import NodeFact, Seen, Setting

COLUMNS = {
    "name": "gpu.name",
    "gpu_name": "gpu.name",
    "uuid": "gpu.uuid",
    "gpu_uuid": "gpu.uuid",
    "driver_version": "gpu.driver_version",
    "vbios_version": "gpu.vbios_version",
    "utilization.gpu": "gpu.utilization_pct",
    "utilization.memory": "gpu.memory_utilization_pct",
    "memory.used": "gpu.memory_used_mib",
    "memory.total": "gpu.memory_total_mib",
    "temperature.gpu": "gpu.temperature_c",
    "temperature.memory": "gpu.memory_temperature_c",
    "power.draw": "gpu.power_w",
    "power.draw.instant": "gpu.power_w",
    "power.limit": "gpu.power_limit_w",
    "enforced.power.limit": "gpu.power_limit_w",
    "power.default_limit": "gpu.power_default_w",
    "clocks.sm": "gpu.clock.sm_mhz",
    "clocks.current.sm": "gpu.clock.sm_mhz",
    "clocks.max.sm": "gpu.clock.sm_max_mhz",
    "clocks.mem": "gpu.clock.memory_mhz",
    "clocks.current.memory": "gpu.clock.memory_mhz",
    "pstate": "gpu.pstate",
    "pcie.link.gen.current": "gpu.pcie.gen",
    "pcie.link.gen.gpucurrent": "gpu.pcie.gen",
    "pcie.link.gen.max": "gpu.pcie.gen_max",
    "pcie.link.width.current": "gpu.pcie.width",
    "pcie.link.width.max": "gpu.pcie.width_max",
    "ecc.mode.current": "gpu.ecc.mode",
    "ecc.errors.uncorrected.volatile.total": "gpu.ecc.uncorrectable",
    "remapped_rows.pending": "gpu.ecc.remap_pending",
    "remapped_rows.failure": "gpu.ecc.remap_failed",
    "remapped_rows.uncorrectable": "gpu.ecc.remapped_uncorrectable",
    "mig.mode.current": "gpu.mig.mode",
    "fabric.state": "gpu.fabric.state",
    "fabric.status": "gpu.fabric.status",
}
_BUS = ("pci.bus_id", "gpu_bus_id", "gpu_bus_id ")
_KNOWN = {
    *COLUMNS,
    *_BUS,
    "index",
    "pid",
    "process_name",
    "used_memory",
    "used_gpu_memory",
    "timestamp",
    "count",
    "serial",
}
_THROTTLE = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
_UNIT = re.compile(r"\s*\[[^\]]*\]\s*$")
_REASONS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "applications_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal_slowdown",
    "hw_power_brake_slowdown": "hw_power_brake",
    "sw_thermal_slowdown": "sw_thermal_slowdown",
    "sync_boost": "sync_boost",
}
_BITS = {
    0x1: "idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
_FLAGS = {"Active": 1.0, "Not Active": 0.0, "Yes": 1.0, "No": 0.0}
MOST_ROWS = 100_000


class NvidiaSmiCsv:
    """A header is a line of which at least two columns, and half of all, are known."""

    needles: tuple[str, ...] = (
        "pci.bus_id",
        "gpu_bus_id",
        "utilization.gpu",
        "pcie.link",
        "clocks.",
        "clocks_",
        "temperature.gpu",
        "power.draw",
        "memory.used",
        "driver_version",
        "remapped_rows",
        "gpu_uuid",
        "index, name",
        "index,name",
        "mig.mode",
        "ecc.mode",
        "fabric.",
    )

    def line(self, line: Line) -> Iterator[Seen]:
        columns = [_UNIT.sub("", cell).strip() for cell in line.text.split(",")]
        known = sum(column in _KNOWN or _THROTTLE.fullmatch(column) is not None for column in columns)
        if known < 2 or 2 * known < len(columns):
            return
        for after in line.following(MOST_ROWS):
            cells = [cell.strip() for cell in after.text.split(",")]
            if len(cells) != len(columns) or cells[:2] == columns[:2]:
                return
            yield from _row(dict(zip(columns, cells, strict=True)))

    def end(self) -> Iterable[Seen]:
        return ()


def _row(row: dict[str, str]) -> Iterator[Seen]:
    address = next((bus_id(row[name]) for name in _BUS if name in row), None)
    index = row.get("index", "")
    device = f"gpu{index}" if index.isdigit() else address or row.get("gpu_uuid")
    if "pid" in row:
        name, memory = row.get("process_name", ""), row.get("used_memory", row.get("used_gpu_memory", ""))
        yield fact("gpu.process", f"{row['pid']} {name}", device, _leading(memory))
        return
    if index.isdigit() and address is not None:
        yield NodeFact("gpu.bus_id", address, device=device)
    for column, cell in row.items():
        throttle = _THROTTLE.fullmatch(column)
        if throttle is not None:
            yield from _throttle(throttle[1], cell, device)
        elif column == "driver_version":
            yield NodeFact("gpu.driver_version", cell, device=device)
            yield Setting("driver", "nvidia", cell)
        elif column in COLUMNS and cell not in ("N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", ""):
            yield fact(COLUMNS[column], cell, device, _FLAGS.get(cell))


def _leading(text: str) -> float:
    first = text.split(" ", maxsplit=1)[0]
    return float(first) if first.isdigit() else 0.0


def _throttle(name: str, cell: str, device: str | None) -> Iterator[NodeFact]:
    if name in ("active", "supported"):
        if name == "active" and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell):
            mask = int(cell, 16)
            yield NodeFact("gpu.throttle_mask", cell, float(mask), device=device)
            for bit, reason in _BITS.items():
                yield NodeFact(f"gpu.throttle.{reason}", cell, float(bool(mask & bit)), device=device)
    elif name in _REASONS and cell in _FLAGS:
        yield NodeFact(f"gpu.throttle.{_REASONS[name]}", cell, _FLAGS[cell], device=device)
