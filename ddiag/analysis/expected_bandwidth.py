"""What bus bandwidth a machine should reach on large messages inside one node.

Ceilings are what nccl-tests and rccl-tests report as busbw of large messages on healthy machines of that kind (about
80-90 % of the links' unidirectional rate, NCCL's own model in ``src/graph/topo.h`` and ``tuning.cc``), not data sheet
figures. Where wiring differs between machines of one name, the smallest is taken or nothing: a link must not be called
slow because a table assumed another machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Fabric:
    """The links between the devices of one node."""

    pattern: re.Pattern[str]
    busbw_gbps: float
    """All devices of a node together, GB/s."""
    name: str
    switched: bool
    """Any subset of devices reaches the same (a switch); else only the full node does."""
    node_size: int = 8


_FABRICS = tuple(
    Fabric(re.compile(pattern, re.IGNORECASE), busbw, name, switched)
    for pattern, busbw, name, switched in (
        (
            r"PCIE|\bNVL\b|\bL40|\bL4\b|\bT4\b|\bA10\b|\bA10G\b|\bA30\b|\bA40\b|RTX|GTX|Quadro|Titan|DGXS",
            0.0,
            "",
            False,
        ),
        (r"\b[GB]*B[23]00\b", 600.0, "NVLink 5", True),
        (r"H800", 140.0, "NVLink 4, halved", True),
        (r"\b(?:H100|H200|H20|GH200)\b", 330.0, "NVLink 4", True),
        (r"A800", 140.0, "NVLink 3, reduced", True),
        (r"\bA100(?:-SXM|-PG509)", 220.0, "NVLink 3", True),
        (r"V100-SXM", 110.0, "NVLink 2", False),
        (r"MI3(?:00X|25X)", 290.0, "Infinity Fabric", False),
    )
)
"""First match counts; a part without a rate is known to have no fixed fabric. busbw of all-reduce: DGX-1V 130,
DGX A100 235, DGX H100 370 without in-network reduction, MI300X 310-330 GB/s; the values here are some 10 % lower."""


def fabric_of(device_name: str) -> Fabric | None:
    """The fabric of a node of such devices, or None when the name does not settle it."""
    found = next((fabric for fabric in _FABRICS if fabric.pattern.search(device_name)), None)
    return found if found is not None and found.busbw_gbps > 0 else None


def expected_gbps(device_name: str, group_size: int) -> tuple[float, str] | None:
    """(busbw in GB/s, how it was found) of *group_size* devices in one node, or None when it is not known."""
    fabric = fabric_of(device_name)
    if fabric is None or not 2 <= group_size <= fabric.node_size:
        return None
    if group_size < fabric.node_size and not fabric.switched:
        return None
    return fabric.busbw_gbps, f"{fabric.name}, {group_size} devices of one node"
