"""What the sampler saw of a node, as the facts that tools (taskset, nvidia-smi, ibstat, ethtool) would print.

Counters are told as what they rose by while the job ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddiag.ingest.logs.nvidia_smi_links import NvidiaSmiLinks
from ddiag.ingest.logs.reader import parse
from ddiag.ingest.node_samples import NodeSamples
from ddiag.model.incident import NodeFact

SOURCE = "samples"
_LINK_GBS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
"""Speed of one NVLink of each version, one direction."""
_LINK_ERRORS = ("replay_errors", "recovery_errors", "failed_recovery_errors")
_OF_PORTS = {
    "xmit_discards": "port_xmit_discards", "out_of_sequence": "out_of_sequence", "packet_seq_err": "packet_seq_err",
    "ack_timeouts": "local_ack_timeout_err", "rnr_retries": "rnr_nak_retry_err", "cnp_sent": "np_cnp_sent",
    "errors": "port_errors",
}  # fmt: skip
"""Counters of a port, by the name of the sample: as the kernel calls them."""
_PORT_COUNTER = re.compile(r"ib\.([^/]+)/\d+\.(\w+)")
_MEMORY_ERRORS = re.compile(r"device(\d+)\.ecc_uncorrected")
_NEW_ERRORS = "gpu.ecc.uncorrectable_new"
_RATE = re.compile(r"([\d.]+) Gb/sec")


def node_facts(node: NodeSamples, devices: Sequence[Mapping[str, Any]], buses: Sequence[str | None]) -> list[NodeFact]:
    """*devices* as they were described once, and their bus ids."""
    told = (*_places(node, devices, buses), *_memory(node), *_links(node), *_ports(node), *_counters(node))
    return [replace(fact, host=node.host, source=fact.source or SOURCE) for fact in told]


def _places(node: NodeSamples, devices: Sequence[Mapping[str, Any]], buses: Sequence[str | None]) -> Iterator[NodeFact]:
    """Who may run where, who uses which device, and what is near it."""
    if node.cpus is not None:
        yield NodeFact("cpu.count", str(node.cpus), float(node.cpus))
    for pid, cpus in node.affinity.items():
        yield NodeFact("process.affinity", cpus, float(pid))
    for index, (device, bus) in enumerate(zip(devices, buses, strict=True)):
        if bus is not None:
            yield NodeFact("gpu.bus_id", bus, device=f"gpu{index}")
        near = device.get("cpus_near")
        if isinstance(near, str) and near:
            yield NodeFact("gpu.cpu_affinity", near, device=f"gpu{index}")
        for pid in sorted(node.users.get(index, ())):
            if pid in node.rank_of:
                yield NodeFact("gpu.process", f"{pid} rank {node.rank_of[pid]}", device=f"gpu{index}")
    for seen in parse(node.topology.splitlines(), [NvidiaSmiLinks], "nvidia-smi topo -m"):
        if isinstance(seen, NodeFact):
            yield seen


def _memory(node: NodeSamples) -> Iterator[NodeFact]:
    """Rows of devices' memory that wait for a reset, or could not be replaced."""
    for index, rows in node.remapped.items():
        for place, key in ((2, "gpu.ecc.remap_pending"), (3, "gpu.ecc.remap_failed")):
            if len(rows) > place:
                yield NodeFact(key, "Yes" if rows[place] else "No", float(bool(rows[place])), device=f"gpu{index}")


def _links(node: NodeSamples) -> Iterator[NodeFact]:
    for index, (first, last) in node.nvlinks.items():
        before = {link.get("link"): link for link in first}
        for link in last:
            key = f"gpu.nvlink.{link.get('link')}"
            speed = _LINK_GBS.get(link.get("version", 0), 25.0) if link.get("active") else 0.0
            yield NodeFact(f"{key}.gbs", f"{speed} GB/s" if speed else "<inactive>", speed, device=f"gpu{index}")
            for name in _LINK_ERRORS:
                risen = link.get(name, 0) - before.get(link.get("link"), {}).get(name, 0)
                if risen > 0:
                    yield NodeFact(f"{key}.{name}", _words(risen), float(risen), device=f"gpu{index}")


def _ports(node: NodeSamples) -> Iterator[NodeFact]:
    """InfiniBand and RoCE ports; of a device with several, all have its name."""
    for port, told in node.ports.items():
        device = port.partition("/")[0]
        state = str(told.get("state", "")).rpartition(": ")[2].capitalize()
        rate = _RATE.match(str(told.get("rate", "")))
        if state:
            yield NodeFact("nic.state", state, device=device)
        if rate is not None:
            yield NodeFact("nic.rate_gbps", rate[1], float(rate[1]), device=device)
        if told.get("link_layer"):
            yield NodeFact("nic.link_layer", str(told["link_layer"]), device=device)


def _counters(node: NodeSamples) -> Iterator[NodeFact]:
    """What ports lose, repeat or are slowed by, also where it is nothing; memory errors where there are new ones."""
    for (device, key), risen in _rises(node.rows).items():
        if risen or key != _NEW_ERRORS:
            yield NodeFact(key, _words(risen), risen, device=device)


def _rises(rows: Iterable[tuple[int | None, str, int, float]]) -> dict[tuple[str, str], float]:
    """By how much counters rose: by device and key of the fact they become."""
    places: dict[str, tuple[str, str] | None] = {}
    last: dict[str, float] = {}
    found: dict[tuple[str, str], float] = {}
    for _, name, _, value in rows:  # millions, of a few hundred names
        if name not in places:
            places[name] = _place(name)
        place = places[name]
        if place is not None:
            found[place] = found.get(place, 0.0) + max(value - last.get(name, value), 0.0)
            last[name] = value
    return found


def _place(name: str) -> tuple[str, str] | None:
    """(device, key) of a counter by the name of its samples; None for all others."""
    if (match := _PORT_COUNTER.fullmatch(name)) is not None and match[2] in _OF_PORTS:
        return match[1], f"nic.counter.{_OF_PORTS[match[2]]}"
    match = _MEMORY_ERRORS.fullmatch(name)
    return None if match is None else (f"gpu{match[1]}", _NEW_ERRORS)


def _words(risen: float) -> str:
    return f"rose by {risen:,.0f} while the job ran"
