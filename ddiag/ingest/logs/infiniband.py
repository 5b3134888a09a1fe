"""RDMA tools: ibstat, ibv_devinfo, rdma link, ibdev2netdev, show_gids, ethtool -S, ip -br addr."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.facts import fact, number
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import NodeFact, Seen

_CA = re.compile(r"^\s*CA '([\w.-]+)'")
_HCA = re.compile(r"^\s*hca_id:\s*([\w.-]+)")
_STATE = re.compile(r"^\s*State: (\w+)\s*$")
_PHYSICAL = re.compile(r"^\s*Physical state: (\w+)\s*$")
_RATE = re.compile(r"^\s*Rate: ([\d.]+)\s*$")
_LAYER = re.compile(r"^\s*Link layer: (\w+)\s*$|^\s*link_layer:\s*(\w+)\s*$")
_DEV_STATE = re.compile(r"^\s*state:\s*PORT_(\w+) \(\d\)")
_DEV_MTU = re.compile(r"^\s*active_mtu:\s*(\d+)")
_RDMA = re.compile(r"link ([\w.-]+)/(\d+) state (\w+)(?: physical_state (\w+))?(?: netdev ([\w.@-]+))?")
_DEV2NET = re.compile(r"([\w.-]+) port (\d+) ==> ([\w.@-]+) \((\w+)\)")
_GID = re.compile(r"^\s*([\w.-]+)\s+(\d+)\s+(\d+)\s+([0-9a-f]{4}(?::[0-9a-f]{4}){7})\s+(?:[\d.]+\s+)?(v[12])\s+(\S+)")
_COUNTER = re.compile(r"^\s*([a-z][\w.-]*): (\d+)\s*$")
_NIC_STATISTICS = re.compile(r"^\s*NIC statistics:")
_ADDRESS = re.compile(r"^\s*([\w.@-]+)\s+(UP|DOWN|UNKNOWN)\s+(\S.*)$")
_ETHTOOL = re.compile(r"ethtool -S ([\w.-]+)")
MOST_COUNTERS = 3000
_WORTH = re.compile(
    r"pause|cnp|discard|out_of_(?:seq|buffer)|drop|error|crc|symbol|link_down|retrans|timeout|rnr|ecn|duplicate|"
    r"phy_raw|corrupt"
)
"""Counters that say something about congestion or a bad link; the thousands of others are left out."""


class InfiniBandTools:
    """Ports of RDMA devices; the device whose heading came last owns what follows."""

    needles: tuple[str, ...] = (
        "CA '",
        "hca_id",
        "State:",
        "Physical state",
        "Rate: ",
        "ink layer",
        "link_layer",
        "PORT_",
        "active_mtu",
        "/1 state ",
        "/2 state ",
        " ==> ",
        "fe80:0000",
        "0000:0000:0000",
        "NIC statistics",
        "ethtool -S",
        " UP  ",
        " DOWN  ",
    )

    def __init__(self) -> None:
        self._device: str | None = None
        self._interface: str | None = None

    def line(self, line: Line) -> Iterator[Seen]:
        heading = _CA.search(line.text) or _HCA.search(line.text)
        if heading is not None:
            self._device = heading[1]
            return
        named = _ETHTOOL.search(line.text)
        if named is not None:
            self._interface = named[1]
        elif _NIC_STATISTICS.search(line.text):
            yield from self._counters(line)
        elif self._device is not None and (found := self._port(line.text)) is not None:
            yield found
        else:
            yield from _one_line(line.text)

    def end(self) -> Iterable[Seen]:
        return ()

    def _port(self, text: str) -> NodeFact | None:
        """A line of ibstat's or ibv_devinfo's block."""
        for pattern, key in ((_STATE, "nic.state"), (_PHYSICAL, "nic.physical_state"), (_LAYER, "nic.link_layer")):
            match = pattern.search(text)
            if match is not None:
                return NodeFact(key, next(filter(None, match.groups())), device=self._device)
        if (match := _RATE.search(text)) is not None:
            return fact("nic.rate_gbps", match[1], self._device)
        if (match := _DEV_STATE.search(text)) is not None:
            return NodeFact("nic.state", match[1].capitalize(), device=self._device)
        if (match := _DEV_MTU.search(text)) is not None:
            return fact("nic.mtu_bytes", match[1], self._device)
        return None

    def _counters(self, line: Line) -> Iterator[NodeFact]:
        for after in line.following(MOST_COUNTERS):
            match = _COUNTER.search(after.text)
            if match is None:
                return
            if _WORTH.search(match[1]):
                yield NodeFact(f"nic.counter.{match[1]}", match[2], float(match[2][:18]), device=self._interface)


def _one_line(text: str) -> Iterator[NodeFact]:
    if (rdma := _RDMA.search(text)) is not None:
        yield NodeFact("nic.state", rdma[3].capitalize(), device=rdma[1])
        if rdma[4]:
            yield NodeFact("nic.physical_state", rdma[4].replace("_", "").capitalize(), device=rdma[1])
        if rdma[5]:
            yield NodeFact("nic.netdev", rdma[5], device=rdma[1])
    elif (pair := _DEV2NET.search(text)) is not None:
        yield NodeFact("nic.netdev", f"{pair[3]} {pair[4]}", device=pair[1])
        yield NodeFact("nic.state", "Active" if pair[4] == "Up" else pair[4], device=pair[1])
    elif (gid := _GID.search(text)) is not None:
        yield NodeFact("nic.gid", f"{gid[3]} {gid[4]} {gid[5]} {gid[6]}", number(gid[3]), device=gid[1])
    elif (address := _ADDRESS.search(text)) is not None and re.search(
        r"\d+\.\d+\.\d+\.\d+/\d+|[0-9a-f:]+/\d+", address[3]
    ):
        yield NodeFact("nic.address", f"{address[1]} {address[2]} {address[3].strip()}", device=address[1])
