"""Healthy signals of memory and links that only samples give (see ``tests/factories.py``)."""

from __future__ import annotations

from typing import Any

import polars as pl

from ddiag.model.signals_sampled import AllocatorRetries, HostLink, HostMemory
from tests.factory_time import Given, Shape

GIB = 1 << 30


def allocator_retries(shape: Shape, given: Given) -> AllocatorRetries:
    """An allocator that always finds what it needs. Shorthand ``retried``: {rank: columns of its row}."""
    retried: dict[int, dict[str, Any]] = given.pop("retried", {})
    usual = {
        "steps": 200, "steps_with_retries": 0, "retries": 0, "extra_ms": None, "inactive_split_share": 0.1, "ooms": 0,
    }  # fmt: skip
    rows = [{"rank": rank, **usual, **retried.get(rank, {})} for rank in shape.ranks]
    return AllocatorRetries(**{"table": pl.DataFrame(rows), **given})


def host_memory(shape: Shape, given: Given) -> HostMemory:
    """A third of each host in use. Shorthand ``hosts``: {host: columns of its row}."""
    hosts: dict[str, dict[str, Any]] = given.pop("hosts", {})
    usual = {
        "limit": "host", "limit_bytes": 1024 * GIB, "peak_bytes": 340 * GIB, "job_bytes": 300 * GIB, "largest_rank": 0,
        "largest_bytes": 80 * GIB, "swapped_bytes": 0, "samples": 60,
    }  # fmt: skip
    names = sorted({f"node{rank // 4}" for rank in shape.ranks})
    there = {host: sum(f"node{rank // 4}" == host for rank in shape.ranks) for host in names}
    rows = [{"host": host, "ranks": there[host], **usual, **hosts.get(host, {})} for host in names]
    return HostMemory(**{"table": pl.DataFrame(rows), **given})


def host_link(shape: Shape, given: Given) -> HostLink:
    """Inputs go in, little comes out. Shorthand ``devices``: {rank: columns of its row}."""
    devices: dict[int, dict[str, Any]] = given.pop("devices", {})
    usual = {
        "samples": 60, "pcie_gen": 5.0, "pcie_width": 16.0, "link_gbps": 63.0, "to_device_gbps": 2.0,
        "from_device_gbps": 0.1, "util": 95.0, "nvlink_gbps": 120.0,
    }  # fmt: skip
    rows = [
        {"host": f"node{rank // 4}", "device": rank % 4, "ranks": [rank], **usual, **devices.get(rank, {})}
        for rank in shape.ranks
    ]
    return HostLink(**{"table": pl.DataFrame(rows), "seconds": 60.0, **given})
