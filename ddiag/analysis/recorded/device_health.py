"""What the driver said of devices that were busy while the judged steps ran."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.recorded.sampled import prefix_of, rate, series
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals_recorded import DeviceHealth

THERMAL = 0x20 | 0x40
"""nvmlClocksEventReasonSwThermalSlowdown, HwThermalSlowdown."""
BRAKE = 0x08 | 0x80
"""HwSlowdown, HwPowerBrakeSlowdown. (SwPowerCap is what a device at its power limit does, and no fault.)"""
_BUSY_PERCENT = 50
_TRAFFIC_GBPS = 0.5
"""Over the link to the host, both directions, from which it is awake."""
_SENT = ("pcie_rx_bytes", "pcie_tx_bytes", "pcie_rx_kbps", "pcie_tx_kbps")
_VALUES = ("util", "reasons", "sm_mhz", "pcie_width", "pcie_gen", *_SENT)
_SCHEMA = {
    "samples": pl.Int64, "link_samples": pl.Int64, "thermal_share": pl.Float64, "brake_share": pl.Float64,
    "sm_mhz": pl.Float64, "pcie_width": pl.Float64, "pcie_gen": pl.Float64, "throttled_share": pl.Float64,
    "replays_per_min": pl.Float64,
}  # fmt: skip


def device_health(run: Run, windows: StepWindows) -> DeviceHealth | None:
    """None without devices, or without samples of any from the time of the steps."""
    devices, counters = run.table("devices"), run.table("counters")
    if devices.is_empty() or counters.is_empty() or windows.table.is_empty():
        return None
    begin, end = int(windows.table["start_ns"].to_numpy().min()), int(windows.table["end_ns"].to_numpy().max())
    inside = counters.filter(pl.col("ts_ns").is_between(begin, end)).with_columns(pl.col("name").cast(pl.String))
    inside = inside.sort("ts_ns")
    rows = []
    for device in devices.iter_rows(named=True):
        name = f"{prefix_of(run, device['host'])}device{device['device']}."
        told = _busy(inside, name)
        if told is not None:
            rows.append({**device, **told, **_counted(inside, name)})
    if not rows:
        return None
    return DeviceHealth(
        pl.DataFrame(rows, schema={**devices.schema, **_SCHEMA}, orient="row"), seconds=(end - begin) / 1e9
    )


def _counted(inside: pl.DataFrame, prefix: str) -> dict[str, float | None]:
    """What the device adds up itself, and misses nothing between two samples."""
    slowed_us = rate(series(inside, f"{prefix}thermal_us"))
    replays = rate(series(inside, f"{prefix}pcie_replays"))
    return {
        "throttled_share": None if slowed_us is None else min(slowed_us / 1e6, 1.0),
        "replays_per_min": None if replays is None else replays * 60,
    }


def _busy(inside: pl.DataFrame, prefix: str) -> dict[str, object] | None:
    """What the samples of the busy device, and of its busy link, say; None when neither was."""
    names = [f"{prefix}{value}" for value in _VALUES]
    mine = inside.filter(pl.col("name").is_in(names))
    if mine.is_empty():
        return None
    wide = mine.pivot("name", index="ts_ns", values="value", aggregate_function="first")
    wide = wide.rename({name: name.removeprefix(prefix) for name in wide.columns if name != "ts_ns"})
    wide = wide.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in _VALUES if name not in wide.columns)
    counted = (pl.col("pcie_rx_bytes") + pl.col("pcie_tx_bytes")).diff() / pl.col("ts_ns").diff()
    traffic = pl.coalesce(counted, (pl.col("pcie_rx_kbps") + pl.col("pcie_tx_kbps")) / 1e6)
    computes = pl.col("util") >= _BUSY_PERCENT
    busy, awake = wide.filter(computes), wide.filter(computes | (traffic >= _TRAFFIC_GBPS))
    if awake.is_empty():
        return None
    reasons = pl.col("reasons").cast(pl.Int64)
    health = busy.select(
        samples=pl.len().cast(pl.Int64),
        thermal_share=((reasons & THERMAL) != 0).mean(),
        brake_share=((reasons & BRAKE) != 0).mean(),
        sm_mhz=pl.col("sm_mhz").median(),
    )
    link = awake.select(
        link_samples=pl.len().cast(pl.Int64), pcie_width=pl.col("pcie_width").max(), pcie_gen=pl.col("pcie_gen").max()
    )
    return {**health.row(0, named=True), **link.row(0, named=True)}
