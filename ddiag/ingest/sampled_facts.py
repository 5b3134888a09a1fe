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
_RATE = re.compile(r"([\d.]+) Gb/sec")


def node_facts(node: NodeSamples, devices: Sequence[Mapping[str, Any]], buses: Sequence[str | None]) -> list[NodeFact]:
    """*devices* as they were described once, and their bus ids."""
    told = (*_places(node, devices, buses), *_memory(node), *_links(node), *_ports(node))
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
    """Memory errors of devices."""
    for index, rows in node.remapped.items():
        for place, key in ((2, "gpu.ecc.remap_pending"), (3, "gpu.ecc.remap_failed")):
            if len(rows) > place:
                yield NodeFact(key, "Yes" if rows[place] else "No", float(bool(rows[place])), device=f"gpu{index}")
    for name, risen in _rises(node.rows, re.compile(r"device(\d+)\.ecc_uncorrected")).items():
        if risen:
            yield NodeFact("gpu.ecc.uncorrectable_new", _words(risen), risen, device=f"gpu{name}")


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
    for name, kernel in _OF_PORTS.items():
        for port, risen in _rises(node.rows, re.compile(rf"ib\.([^/]+)/\d+\.{name}")).items():
            yield NodeFact(f"nic.counter.{kernel}", _words(risen), risen, device=port)


def _rises(rows: Iterable[tuple[int | None, str, int, float]], wanted: re.Pattern[str]) -> dict[str, float]:
    """By how much the values whose names match rose, by what the first group matches."""
    last: dict[str, float] = {}
    found: dict[str, float] = {}
    for _, name, _, value in rows:
        match = wanted.fullmatch(name)
        if match is not None:
            found[match[1]] = found.get(match[1], 0.0) + max(value - last.get(name, value), 0.0)
            last[name] = value
    return found


def _words(risen: float) -> str:
    return f"rose by {risen:,.0f} while the job ran"
