"""What the worker processes of the data loaders did while the judged steps ran."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals_recorded import LoaderWorkers

_NS_PER_MS = 1e6
_SAMPLED = ("loaders", "loaders_cpu_ns", "loaders_runnable", "loaders_blocked", "workers_cpu_ns")
_COLUMNS = {
    "rank": pl.Int32, "host": pl.String, "workers": pl.Int64, "input_ms": pl.Float64, "typical_ms": pl.Float64,
    "empty_share": pl.Float64, "samples": pl.Int64, "cpu_share": pl.Float64, "runnable_share": pl.Float64,
    "blocked_share": pl.Float64, "children_share": pl.Float64,
}  # fmt: skip


def loader_workers(run: Run, windows: StepWindows) -> LoaderWorkers | None:
    """One row per rank whose loader has workers; None where no rank's has."""
    steps = windows.steady.select("rank", "step").join(run.table("step_summaries"), on=["rank", "step"])
    steps = steps.filter(pl.col("loader_workers") > 0)
    if steps.is_empty():
        return None
    begin, end = int(steps["start_ns"].to_numpy().min()), int(steps["end_ns"].to_numpy().max())
    samples = _samples(run, begin, end)
    hosts = dict(run.table("ranks").select("rank", "host").iter_rows())
    rows = []
    for (rank,), mine in steps.sort("rank", "step").group_by("rank", maintain_order=True):
        workers = int(mine["loader_workers"].to_numpy().max())
        seen = samples.filter(pl.col("rank") == rank)
        rows.append((rank, hosts.get(rank), workers, *_waited(mine), *_did(seen, workers)))
    return LoaderWorkers(pl.DataFrame(rows, schema=_COLUMNS, orient="row"), (end - begin) / 1e9)


def _waited(steps: pl.DataFrame) -> tuple[float, float, float | None]:
    """``input_ms``, ``typical_ms`` and ``empty_share``; the last is null where a step asks more than once, since only
    its last ask is told.
    """
    input_ms, typical_ms = (
        float(value or 0.0) / _NS_PER_MS
        for value in steps.select(pl.col("input_ns").mean(), pl.col("input_ns").median().alias("median")).row(0)
    )
    known = steps.filter(pl.col("loader_queue").is_not_null())
    waited, asks = known["input_ns"].sum(), steps["micro_steps"].max()
    if not waited or (isinstance(asks, int) and asks > 1):
        return input_ms, typical_ms, None
    return input_ms, typical_ms, float(known.filter(pl.col("loader_queue") == 0)["input_ns"].sum()) / float(waited)


def _samples(run: Run, begin: int, end: int) -> pl.DataFrame:
    """A row per rank and sample taken between *begin* and *end*, a column per counter."""
    counters = run.table("counters").with_columns(pl.col("name").cast(pl.String).str.strip_prefix("process."))
    mine = counters.filter(
        pl.col("rank").is_not_null() & pl.col("name").is_in(_SAMPLED) & pl.col("ts_ns").is_between(begin, end)
    )
    wide = mine.pivot(on="name", index=["rank", "ts_ns"], values="value", aggregate_function="first")
    missing = [pl.lit(None, dtype=pl.Float64).alias(name) for name in _SAMPLED if name not in wide.columns]
    return wide.with_columns(missing).sort("rank", "ts_ns")


def _did(samples: pl.DataFrame, workers: int) -> tuple[int, float | None, float | None, float | None, float | None]:
    """``samples`` and the shares: of those samples that saw all workers, once there are two of them.

    Twice as many are those of a second loader (for evaluation), which idle meanwhile.
    """
    seen = samples.filter(pl.col("loaders").is_between(workers, 2 * workers))
    if seen.height < 2 or 2 * seen.height < samples.height:
        return seen.height, None, None, None, None
    worked_ns = workers * float(seen["ts_ns"][-1] - seen["ts_ns"][0])
    used = (float(seen[name][-1] - seen[name][0]) / worked_ns for name in ("loaders_cpu_ns", "workers_cpu_ns"))
    cpu_share, children_share = used
    runnable, blocked = (
        float(seen[name].to_numpy().mean()) / workers for name in ("loaders_runnable", "loaders_blocked")
    )
    return seen.height, cpu_share, min(runnable, 1.0), min(blocked, 1.0), children_share
