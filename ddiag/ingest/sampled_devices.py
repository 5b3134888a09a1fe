"""Devices as the driver described them to the sampler: rows of ``devices``, whose they are, and faults it reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddiag.ingest.node_samples import NodeSamples
from ddiag.ingest.sampled_facts import node_facts
from ddiag.model.incident import EPOCH, Event, NodeFact, Value

_TOLD = ("name", "memory_bytes", "numa_node", "max_pcie_gen", "max_pcie_width", "max_sm_mhz", "power_limit_w")
"""Of a device's description, as the table has it."""


def device_rows(node: NodeSamples) -> Iterator[dict[str, object]]:
    for index, device in enumerate(described(node)):
        ranks = {node.rank_of[pid] for pid in node.users.get(index, ()) if pid in node.rank_of}
        yield {
            **{name: value for name in _TOLD if isinstance(value := device.get(name), (int, float, str))},
            "host": node.host,
            "device": index,
            "bus_id": bus_id(device),
            "ranks": sorted(ranks),
        }


def described(node: NodeSamples) -> list[Mapping[str, Any]]:
    devices = node.devices.get("devices")
    return [one if isinstance(one, Mapping) else {} for one in devices] if isinstance(devices, list) else []


def bus_id(device: Mapping[str, Any]) -> str | None:
    """``0000:3b:00.0``: NVML writes the domain with eight digits, the kernel with four."""
    found = device.get("bus_id")
    return found.lower().removeprefix("0000") if isinstance(found, str) and len(found) == 16 else found


def of_rank(pid: int, host: str | None, nodes: Sequence[NodeSamples]) -> dict[str, object]:
    """Name and memory of the device that the process *pid* of *host* uses, as columns of ``ranks``.

    A container hides who uses what: then it is known only where all devices of the host are alike.
    """
    own = [node for node in nodes if pid in node.rank_of and host in (None, node.host)]
    if len(own) != 1:
        return {}
    devices = described(own[0])
    used = [device for index, device in enumerate(devices) if pid in own[0].users.get(index, ())]
    kinds = {(str(device.get("name")), str(device.get("memory_bytes"))) for device in used or devices}
    name, memory = kinds.pop() if len(kinds) == 1 else ("", "")
    return {"device_name": name, "device_memory_bytes": int(memory)} if memory.isdigit() else {}


def told(node: NodeSamples) -> Iterator[Event | NodeFact]:
    """Faults that the driver reported while it was watched, as dmesg would tell them, and what tools would print."""
    devices = described(node)
    buses = [bus_id(device) for device in devices]
    yield from _faults(node, buses)
    yield from node_facts(node, devices, buses)


def _faults(node: NodeSamples, buses: Sequence[str | None]) -> Iterator[Event]:
    for index, (at_ns, what) in node.lost.items():
        gone: dict[str, Value] = {"bus_id": buses[index] if 0 <= index < len(buses) else None, "detail": what}
        text = f"device {index} ({gone['bus_id']}): {what}"
        yield Event("kernel.gpu_lost", gone, host=node.host, ts_ns=at_ns, clock=EPOCH, text=text, source="NVML")
    for at_ns, index, code in node.xids:
        bus = buses[index] if 0 <= index < len(buses) else None
        fields: dict[str, Value] = {"code": code, "bus_id": bus}
        text = f"Xid {code} on device {index} ({bus})"
        yield Event("kernel.xid", fields, host=node.host, ts_ns=at_ns, clock=EPOCH, text=text, source="NVML events")
