"""How contended the hosts' CPUs were while the judged steps ran, from the samples taken outside the job."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import HostLoad

_MARGIN_NS = 1_500_000_000
"""Samples just before and after the steps count as well: they are taken about once a second."""
_MIN_SECONDS = 0.9
"""Shorter windows are a single sample."""
_COLUMNS = {
    "host": pl.String, "cpus": pl.Int64, "runnable_per_cpu": pl.Float64, "busy_share": pl.Float64,
    "waiting_share": pl.Float64, "job_share": pl.Float64, "steal_share": pl.Float64, "throttled_share": pl.Float64,
}  # fmt: skip


def host_load(run: Run, windows: StepWindows) -> HostLoad | None:
    """One row per sampled host; None without samples from the time of the steps."""
    counters = run.table("counters")
    if counters.is_empty() or windows.table.is_empty():
        return None
    begin, end = int(windows.table["start_ns"].to_numpy().min()), int(windows.table["end_ns"].to_numpy().max())
    inside = counters.filter(pl.col("ts_ns").is_between(begin - _MARGIN_NS, end + _MARGIN_NS)).sort("ts_ns")
    inside = inside.with_columns(pl.col("name").cast(pl.String))
    hosts = run.table("ranks").select("rank", "host").drop_nulls()
    rows = [row for host in _sampled(counters, hosts) if (row := _of_host(inside, counters, hosts, host)) is not None]
    if not rows:
        return None
    table = pl.DataFrame(rows, schema=_COLUMNS, orient="row").sort("runnable_per_cpu", descending=True)
    return HostLoad(table=table, seconds=(end - begin) / 1e9, cpu_ms=_cpu_ms(inside, windows))


def _cpu_ms(inside: pl.DataFrame, windows: StepWindows) -> dict[int, float]:
    """CPU time per step of each rank, from its share of a CPU between the first and the last sample."""
    step_ms = windows.steady.select((pl.col("end_ns") - pl.col("start_ns")).mean() / 1e6).item()
    if step_ms is None:
        return {}
    found = {}
    for (rank,), mine in inside.filter(pl.col("name") == "process.cpu_ns").group_by("rank"):
        rise, seconds = _rise(mine), _seconds(mine)
        if isinstance(rank, int) and rise is not None and seconds >= _MIN_SECONDS:
            found[rank] = rise / (seconds * 1e9) * float(step_ms)
    return dict(sorted(found.items()))


def _sampled(counters: pl.DataFrame, hosts: pl.DataFrame) -> list[str]:
    """Hosts with samples; with one, its values do not bear its name."""
    names = counters["name"].cast(pl.String).unique().to_list()
    several = sorted({name.removesuffix(":cpu.count") for name in names if name.endswith(":cpu.count")})
    return several or (hosts["host"].unique().to_list()[:1] or [""] if "cpu.count" in names else [])


def _of_host(inside: pl.DataFrame, every: pl.DataFrame, hosts: pl.DataFrame, host: str) -> tuple[object, ...] | None:
    name = f"{host}:" if f"{host}:cpu.count" in every["name"].cast(pl.String).unique().to_list() else ""
    count = every.filter(pl.col("name").cast(pl.String) == f"{name}cpu.count")["value"]
    running = inside.filter(pl.col("name") == f"{name}cpu.running")
    seconds = _seconds(running)
    if not len(count) or seconds < _MIN_SECONDS:
        return None
    cpus = float(count[0])
    ranks = hosts.filter(pl.col("host") == host)["rank"].to_list()
    job = inside.filter(
        pl.col("name").is_in(["process.cpu_ns", "process.workers_cpu_ns"]) & pl.col("rank").is_in(ranks)
    )
    used = [(_rise(mine) or 0.0, _seconds(mine)) for _, mine in job.group_by("rank", "name")]
    seen = max((spent for _, spent in used), default=0.0)

    def share(what: str, per: float) -> float | None:
        rise = _rise(inside.filter(pl.col("name") == f"{name}{what}"))
        return None if rise is None else min(rise / per, 1.0)

    return (
        host,
        int(cpus),
        max(float(running["value"].to_numpy().mean()) - 1.0, 0.0) / cpus,  # whoever looks is running as well
        share("cpu.busy_ns", cpus * seconds * 1e9),
        share("pressure.cpu_some_us", seconds * 1e6),
        min(sum(ns for ns, _ in used) / (cpus * seen * 1e9), 1.0) if seen > 0 else None,
        share("cpu.steal_ns", cpus * seconds * 1e9),
        share("cgroup.throttled_us", seconds * 1e6),
    )


def _seconds(rows: pl.DataFrame) -> float:
    return (int(rows["ts_ns"][-1]) - int(rows["ts_ns"][0])) / 1e9 if rows.height > 1 else 0.0


def _rise(rows: pl.DataFrame) -> float | None:
    """By how much a cumulative value rose; None with fewer than two samples."""
    return float(rows["value"][-1] - rows["value"][0]) if rows.height > 1 else None
