"""How much travels between the devices and their hosts, from the devices' own counters."""

from __future__ import annotations

from typing import Any

import polars as pl

from ddiag.analysis.recorded.sampled import judged_time, prefix_of, rate, samples, series
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals_sampled import HostLink

_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""What a lane of each generation carries in one direction, after line coding."""
_RATE_SAMPLES = 5
"""Momentary rates (20 ms each) that a mean needs; cumulative counters need two readings."""
_SCHEMA: dict[str, Any] = {
    "host": pl.String, "device": pl.Int32, "ranks": pl.List(pl.Int32), "samples": pl.Int64, "pcie_gen": pl.Float64,
    "pcie_width": pl.Float64, "link_gbps": pl.Float64, "to_device_gbps": pl.Float64, "from_device_gbps": pl.Float64,
    "util": pl.Float64, "nvlink_gbps": pl.Float64,
}  # fmt: skip


def host_link(run: Run, windows: StepWindows) -> HostLink | None:
    """None without devices that count what they send and receive, sampled while the judged steps ran."""
    devices = run.table("devices")
    if devices.is_empty() or not run.has("counters"):
        return None
    begin, end = judged_time(windows)
    inside = samples(run, begin, end)
    rows = [
        (device["host"], device["device"], device["ranks"], *told)
        for device in devices.iter_rows(named=True)
        if (told := _of_device(inside, f"{prefix_of(run, device['host'])}device{device['device']}.")) is not None
    ]
    return HostLink(pl.DataFrame(rows, schema=_SCHEMA, orient="row"), (end - begin) / 1e9) if rows else None


def _of_device(inside: pl.DataFrame, prefix: str) -> tuple[object, ...] | None:
    received = _gbps(inside, f"{prefix}pcie_rx")
    sent = _gbps(inside, f"{prefix}pcie_tx")
    generation, width = _highest(inside, f"{prefix}pcie_gen"), _highest(inside, f"{prefix}pcie_width")
    if received is None or sent is None or generation is None or width is None:
        return None
    lane = _LANE_GBPS.get(int(generation))
    if lane is None or not width:
        return None
    links = [rate(series(inside, f"{prefix}nvlink_{way}_bytes")) for way in ("tx", "rx")]
    util = series(inside, f"{prefix}util")
    return (
        util.height, generation, width, lane * width, received, sent, util["value"].mean(),
        None if None in links else sum(one or 0.0 for one in links) / 1e9,
    )  # fmt: skip


def _gbps(inside: pl.DataFrame, name: str) -> float | None:
    """From the cumulative counter, else the mean of momentary rates."""
    counted = rate(series(inside, f"{name}_bytes"))
    if counted is not None:
        return counted / 1e9
    moments = series(inside, f"{name}_kbps")["value"]
    return float(moments.to_numpy().mean()) * 1e3 / 1e9 if len(moments) >= _RATE_SAMPLES else None


def _highest(inside: pl.DataFrame, name: str) -> float | None:
    values = series(inside, name)["value"].to_list()
    return max(values, default=None)
