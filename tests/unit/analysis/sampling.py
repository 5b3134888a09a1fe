"""A recorded run of two ranks on node0, with what its sampler wrote, for tests of what samples mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddiag.api import diagnose, load
from ddiag.model.run import Run
from ddiag.rulekit import Finding
from ddiag.schema.samples import encode, header
from tests.recordings import WALL_NS, healthy, write_run

SECOND_NS = 10**9
GIB = 1 << 30
H100 = {
    "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * GIB, "max_pcie_gen": 5, "max_pcie_width": 16,
    "max_sm_mhz": 1980,
}  # fmt: skip
WELL = {"util": 98, "reasons": 0x4, "sm_mhz": 1900, "pcie_gen": 5, "pcie_width": 16}
BUSES = ("00000000:3B:00.0", "00000000:5E:00.0", "00000000:86:00.0", "00000000:AF:00.0")


@dataclass
class Node:
    """What the sampler of node0 says, besides what a healthy one does; times are samples, 0.2 s apart."""

    devices: tuple[Mapping[str, Any], ...] = (H100, H100)
    """As told once."""
    users: tuple[int, ...] = (100, 101)
    """Process seen on each device; empty: a container hides them."""
    each: Mapping[str, Any] = field(default_factory=dict)
    """Of every sample, beside devices and ranks."""
    device: tuple[Mapping[str, Any], ...] = ({}, {})
    """Of every sample, by device (the first ones); a pair is a value that goes evenly from the first to the second."""
    rss: tuple[int, int] = (GIB, GIB)
    told: tuple[Mapping[str, Any], ...] = ()
    """More facts, each with its kind, told at the beginning …"""
    at_end: tuple[Mapping[str, Any], ...] = ()
    """… and at the end."""
    samples: int = 13
    cpus: int = 16
    host: str = "node0"
    ranks: tuple[int, ...] = (0, 1)
    """That run there."""

    def lines(self) -> list[dict[str, Any]]:
        devices = [{**told, "bus_id": bus} for told, bus in zip(self.devices, BUSES, strict=False)]
        last = WALL_NS + (self.samples - 1) * SECOND_NS // 5
        return [
            header(host=self.host, wall_ns=WALL_NS, interval_s=0.2, cpus=self.cpus),
            {"t": WALL_NS, "kind": "devices", "devices": devices},
            *({"t": WALL_NS, "kind": "device_processes", "device": i, "pids": [p]} for i, p in enumerate(self.users)),
            *({"t": WALL_NS, **fact} for fact in self.told),
            *(self._sample(number) for number in range(self.samples)),
            *({"t": last, **fact} for fact in self.at_end),
        ]

    def _sample(self, number: int) -> dict[str, Any]:
        part = number / (self.samples - 1)
        given = (*self.device, *({} for _ in self.devices))
        devices = [_at(part, {**WELL, **one}) for one, _ in zip(given, self.devices, strict=False)]
        ranks = [[100 + r, r, number * 10**8, self.rss[r], 8, "R", r, 0, 0, 0, 0, 0] for r in self.ranks]
        at = WALL_NS + number * SECOND_NS // 5
        return {"t": at, "kind": "sample", "devices": devices, "ranks": ranks, **_at(part, self.each)}


def _at(part: float, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(part, value) for name, value in values.items()}


def _value(part: float, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _at(part, value)
    if isinstance(value, tuple):
        first, last = value
        return round(first + part * (last - first))
    return value


def recorded(folder: Path, node: Node, *others: Node, lines: list[dict[str, Any]] | None = None, **plan: Any) -> Run:
    """Two ranks of 24 steps of 100 ms, sampled all the time; *lines* in place of the node's own."""
    run = write_run(folder, *healthy(**{"steps": 24, **plan}))
    (run / "nodes").mkdir(exist_ok=True)
    for one in (node, *others):
        data = b"".join(encode(line) for line in lines or one.lines())
        (run / "nodes" / f"{one.host}.samples").write_bytes(data)
    return load([str(run)])


def found(run: Run) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnose(run).findings}
