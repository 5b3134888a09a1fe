"""How full the memory of the job's hosts became, over the whole run."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.recorded.sampled import prefix_of, rise, samples, series
from ddiag.model.run import Run
from ddiag.model.signals_sampled import HostMemory

_SCHEMA = {
    "host": pl.String, "ranks": pl.Int64, "limit": pl.String, "limit_bytes": pl.Int64, "peak_bytes": pl.Int64,
    "job_bytes": pl.Int64, "largest_rank": pl.Int32, "largest_bytes": pl.Int64, "swapped_bytes": pl.Int64,
    "samples": pl.Int64,
}  # fmt: skip
_RESIDENT = ("process.rss_bytes", "process.workers_rss_bytes")
_NEAR_NS = 2_000_000_000
"""Of one moment: a host is sampled about once a second."""


def host_memory(run: Run) -> HostMemory | None:
    """None where no host told both what it has and what is in use."""
    hosts = run.table("ranks").select("rank", "host").drop_nulls()
    if hosts.is_empty() or not run.has("counters"):
        return None
    every = samples(run)
    found = [
        row
        for (host,), mine in hosts.group_by("host", maintain_order=True)
        if (row := _of_host(every, str(host), prefix_of(run, host), mine["rank"].to_list())) is not None
    ]
    return HostMemory(pl.DataFrame(found, schema=_SCHEMA, orient="row")) if found else None


def _of_host(every: pl.DataFrame, host: str, prefix: str, ranks: list[int]) -> tuple[object, ...] | None:
    """The fuller of the two limits at its fullest moment."""
    kinds = [one for one in (_host(every, prefix), _group(every, prefix)) if one is not None]
    if not kinds:
        return None
    limit, most, used = max(kinds, key=lambda kind: float(kind[2]["value"].to_numpy().max()) / kind[1])
    fullest = used.sort("value").row(-1, named=True)
    near = pl.col("ts_ns").is_between(fullest["ts_ns"] - _NEAR_NS, fullest["ts_ns"])
    own = every.filter(near & pl.col("name").is_in(_RESIDENT) & pl.col("rank").is_in(ranks))
    held = own.group_by("rank", "name").agg(pl.col("value").last()).group_by("rank").agg(pl.col("value").sum())
    largest = held.sort("value", "rank", descending=[True, False]).row(0) if held.height else (None, None)
    swapped = rise(series(every, f"{prefix}memory.swap_used_bytes"))
    return (
        host, len(ranks), limit, int(most), int(fullest["value"]), int(held["value"].sum()), *largest, swapped,
        used.height,
    )  # fmt: skip


Kind = tuple[str, float, pl.DataFrame]
"""Whose limit, the limit, and what was in use over time."""


def _host(every: pl.DataFrame, prefix: str) -> Kind | None:
    total = series(every, f"{prefix}memory.total_bytes")["value"].to_list()
    free = series(every, f"{prefix}memory.available_bytes")
    if not total or not total[-1] or free.is_empty():
        return None
    return "host", total[-1], free.with_columns(value=total[-1] - pl.col("value"))


def _group(every: pl.DataFrame, prefix: str) -> Kind | None:
    limit = series(every, f"{prefix}cgroup.memory_limit_bytes")["value"].to_list()
    held, cached = (series(every, f"{prefix}cgroup.memory_{name}bytes") for name in ("", "cached_"))
    if not limit or not limit[-1] or held.is_empty() or cached.is_empty():
        return None
    both = held.join(cached.rename({"value": "cached"}), on="ts_ns")
    return ("cgroup", limit[-1], both.select("ts_ns", value=pl.col("value") - pl.col("cached"))) if len(both) else None
