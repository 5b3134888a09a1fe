"""Healthy signals that only a recording gives (see ``tests/factories.py``)."""

from __future__ import annotations

from typing import Any

import polars as pl

from ddiag.model.recorded import EXITS
from ddiag.model.signals_recorded import DeviceHealth, Exits, LoaderWorkers, PinnedMemory, UnmarkedTime, UnusedSearch
from tests.factory_time import EPOCH_NS, Given, Shape

SECOND_NS = 1_000_000_000


def exits(shape: Shape, given: Given) -> Exits:
    """Every rank returned 0. Shorthand ``ends``: {rank: its columns}, ``end_s`` in seconds after a common time."""
    ends: dict[int, dict[str, Any]] = given.pop("ends", {})
    rows = [_end(rank, dict(ends.get(rank, {}))) for rank in shape.ranks]
    table = pl.DataFrame(rows, schema={**EXITS.schema, "out_of_memory_kills": pl.Int64})
    return Exits(**{"table": table, "exit_code": 0, **given})


def _end(rank: int, given: dict[str, Any]) -> dict[str, Any]:
    usual = {
        "rank": rank,
        "host": f"node{rank // 4}",
        "pid": 1000 + rank,
        "end_ns": EPOCH_NS + int(given.pop("end_s", 10.0) * SECOND_NS),
        "exit_code": None if "signal" in given else 0,
        "closed": "signal" not in given,
        "last_ns": EPOCH_NS,
    }
    return {**usual, **given}


def device_health(shape: Shape, given: Given) -> DeviceHealth:
    """Every device at its best. Shorthand ``devices``: {rank: columns of its row}."""
    devices: dict[int, dict[str, Any]] = given.pop("devices", {})
    usual = {
        "samples": 60, "link_samples": 60, "thermal_share": 0.0, "brake_share": 0.0, "sm_mhz": 1950.0,
        "max_sm_mhz": 1980, "pcie_width": 16.0, "pcie_gen": 5.0, "max_pcie_width": 16, "max_pcie_gen": 5,
        "name": "NVIDIA H100 80GB HBM3", "throttled_share": 0.0, "replays_per_min": 0.0,
    }  # fmt: skip
    rows = [
        {"host": f"node{rank // 4}", "device": rank % 4, "ranks": [rank], **usual, **devices.get(rank, {})}
        for rank in shape.ranks
    ]
    return DeviceHealth(**{"table": pl.DataFrame(rows), "seconds": 60.0, **given})


def pinned_memory(shape: Shape, given: Given) -> PinnedMemory:
    """A pool that stays as it is. Shorthand ``grows``: {rank: bytes per step}."""
    grows: dict[int, float] = given.pop("grows", {})
    rows = [
        {
            "rank": rank,
            "last_bytes": 1 << 30,
            "growth_bytes_per_step": float(grows.get(rank, 0.0)),
            "rising": 0.9 if rank in grows else 0.0,
            "looks": 50,
            "steps": 2500,
        }
        for rank in shape.ranks
    ]
    return PinnedMemory(**{"table": pl.DataFrame(rows), "free_bytes": float(1 << 38), **given})


def unused_search(shape: Shape, given: Given) -> UnusedSearch:
    """A search that finds something now and then, so that it is needed."""
    return UnusedSearch(**{"looks": 40, "ever_unused": True, "modules": (0,), "ranks": shape.ranks, **given})


def unmarked_time(shape: Shape, given: Given) -> UnmarkedTime:
    """A hundredth of the step for bookkeeping of the script's own. Shorthand ``ms``: of every rank."""
    ms = given.pop("ms", 0.01 * shape.step_ms)
    return UnmarkedTime(**{"ms_per_step": dict.fromkeys(shape.ranks, ms), "after": "optimizer", **given})


def loader_workers(shape: Shape, given: Given) -> LoaderWorkers:
    """Four workers per rank, ahead of training. Shorthand ``doing``: columns of every rank's row, or these by rank."""
    doing: dict[Any, Any] = given.pop("doing", {})
    usual = {
        "workers": 4, "input_ms": shape.scaled(5.0), "typical_ms": shape.scaled(5.0), "empty_share": 0.0, "samples": 60,
        "cpu_share": 0.3, "runnable_share": 0.3, "blocked_share": 0.0, "children_share": 0.3,
    }  # fmt: skip
    by_rank = all(isinstance(key, int) for key in doing)
    rows = [
        {"rank": rank, "host": f"node{rank // 4}", **usual, **(doing.get(rank, {}) if by_rank else doing)}
        for rank in shape.ranks
    ]
    return LoaderWorkers(**{"table": pl.DataFrame(rows), "seconds": 60.0, **given})
