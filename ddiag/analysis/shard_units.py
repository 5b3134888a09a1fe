"""Parameter gathers and gradient scatters of sharded data parallelism (FSDP1, FSDP2, DeepSpeed ZeRO-3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.intervals import covered, subtract, union
from ddiag.analysis.names import times, where_name
from ddiag.analysis.rank_walk import by_rank
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, ShardUnits

_FRAMEWORKS = (
    ("fsdp1", ("FullyShardedDataParallel", "FSDP::pre_unshard", "_post_backward_hook", "_pre_forward_unshard")),
    ("fsdp2", ("FSDP::",)),
    ("deepspeed", ("PartitionedParameterCoordinator", "partition_parameters.py", "deepspeed/runtime/zero/stage3")),
)
"""Names of spans by framework, first match; FSDP1 also has spans named FSDP::."""
_UNIT_LABEL = r"^(fsdp|zero)/"
"""Labels of parameter gathers in a recording; ZeRO-1 and 2 gather once, after the update ("zero/step") …"""
_NOT_UNITS = r"^zero/(?:step|bucket)"
"""… and that is not sharding of parameters."""
MIN_GATHER_BYTES = 1024
"""Smaller gathers carry metadata or metrics."""
MIN_GATHERS = 1.5
"""Parameter gathers per gradient scatter from which sharding shows without annotations: units are gathered for the
forward and again for the backward, while a sharded optimizer gathers once."""

MIN_HIDDEN = 0.1
"""Share of a gather's transfer with compute beside it from which it was prefetched."""


def shard_units(
    run: Run, windows: StepWindows, acts: Mapping[int, RankActivity], collectives: Collectives | None
) -> ShardUnits | None:
    """Gathers and scatters of steady steps; None where parameters are not sharded."""
    if collectives is None:
        return None
    framework = sharding_framework(run, collectives)
    if not framework:
        return None
    calls = _unit_calls(collectives.table)
    gathers = calls.filter(pl.col("op") == "all_gather")
    steady = windows.table.filter("steady")
    ranks = gathers["rank"].unique().to_list()
    steps = steady.filter(pl.col("rank").is_in(ranks)).height
    if gathers.is_empty() or not steps:
        return None
    sizes = gathers["bytes"].drop_nulls().to_numpy()
    return ShardUnits(
        table=_table(calls, steps),
        gathers_per_step=gathers.height / steps,
        median_gather_bytes=int(np.median(sizes)) if sizes.size else 0,
        largest_gather_bytes=int(sizes.max()) if sizes.size else 0,
        total_gather_bytes=round(float(sizes.sum()) / steps) if sizes.size else 0,
        gather_exposed_ms=_exposed_ms(gathers, steady, acts),
        scatter_exposed_ms=_exposed_ms(calls.filter(pl.col("op") != "all_gather"), steady, acts),
        prefetched_share=_prefetched_share(gathers, acts),
        framework=framework if framework != "sharded" else "",
    )


def sharding_framework(run: Run, collectives: Collectives) -> str:
    """fsdp1, fsdp2, deepspeed, 'sharded' (by the traffic alone), or '' when parameters are not sharded."""
    table = collectives.table
    gathers = table.filter((pl.col("op") == "all_gather") & _large())
    if gathers.is_empty():
        return ""
    named = gathers.filter(~pl.col("label").str.contains(_NOT_UNITS))
    units = named["label"].drop_nulls().str.extract(_UNIT_LABEL, 1).drop_nulls().unique().sort().to_list()
    if units:
        api = run.table("config").filter(pl.col("key") == "fsdp.api")["value"].to_list()
        return "deepspeed" if units[0] == "zero" else f"fsdp{api[0] if api else 2}"
    names = where_name(run.table("ops"), _is_sharding)["name"].cast(pl.String).unique().to_list()
    for framework, marks in _FRAMEWORKS:
        if any(mark in name for mark in marks for name in names):
            return framework
    scatters = table.filter((pl.col("op") == "reduce_scatter") & _large())
    by_group = gathers.group_by("comm").len().join(scatters.group_by("comm").len(), on="comm", suffix="_scatters")
    shared = by_group.filter(pl.col("len") >= MIN_GATHERS * pl.col("len_scatters"))
    return "sharded" if shared.height and scatters.height else ""


def _is_sharding(name: str) -> bool:
    return any(mark in name for _, marks in _FRAMEWORKS for mark in marks)


def _large() -> pl.Expr:
    return pl.col("bytes").is_null() | (pl.col("bytes") >= MIN_GATHER_BYTES)


def _unit_calls(table: pl.DataFrame) -> pl.DataFrame:
    """Gathers and scatters on the communicators that carry gathers.

    Where a backend scatters through an all-reduce (gloo), the all-reduces of that communicator are the scatters.
    """
    gathering = table.filter((pl.col("op") == "all_gather") & _large())["comm"].unique().to_list()
    mine = table.filter(pl.col("comm").is_in(gathering) & _large())
    has_scatter = mine.filter(pl.col("op") == "reduce_scatter").height > 0
    kinds = ["all_gather", "reduce_scatter"] if has_scatter else ["all_gather", "all_reduce"]
    return mine.filter(pl.col("op").is_in(kinds))


def _table(calls: pl.DataFrame, steps: int) -> pl.DataFrame:
    return (
        calls.group_by("op", "bytes")
        .agg(
            (pl.len() / steps).alias("count_per_step"),
            (pl.col("dur_ms").sum() / steps).alias("dur_ms"),
            (pl.col("exposed_ms").sum() / steps).alias("exposed_ms"),
        )
        .sort("op", "bytes")
    )


def _exposed_ms(calls: pl.DataFrame, steady: pl.DataFrame, acts: Mapping[int, RankActivity]) -> float:
    """Per step, mean over ranks: union of the calls' transfers without compute beside them.

    Waiting for late ranks is left out where it is known.
    """
    found = []
    for rank, mine in by_rank(calls):
        steps = steady.filter(pl.col("rank") == rank)
        if rank not in acts or steps.is_empty():
            continue
        start, end = times(mine, "start_ns"), times(mine, "end_ns")
        waited = (mine["wait_ms"].fill_null(0.0).to_numpy() * 1e6).round().astype(np.int64)
        alone = subtract(union(np.minimum(start + waited, end), end), acts[rank].compute)
        spent = covered(alone, times(steps, "start_ns"), times(steps, "end_ns"))
        found.append(float(spent.sum()) / len(spent) / 1e6)
    return float(np.mean(found)) if found else 0.0


def _prefetched_share(gathers: pl.DataFrame, acts: Mapping[int, RankActivity]) -> float | None:
    """Share of gathers that begin before the previous unit's compute has ended: compute runs beside them.

    A gather that the next unit waits for has none beside it. The first gather of each step cannot be prefetched and
    does not count; nor does waiting for late ranks, during which the compute may well run out.
    """
    later = gathers.filter(pl.col("step").is_not_null()).with_columns(
        first=pl.col("start_ns") == pl.col("start_ns").min().over("rank", "step"),
        hidden=pl.col("dur_ms") - pl.col("exposed_ms"),
    )
    later = later.filter(~pl.col("first") & pl.col("rank").is_in(list(acts)))
    if later.is_empty():
        return None
    enough = MIN_HIDDEN * pl.coalesce("transfer_ms", "dur_ms")
    return float(later.select((pl.col("hidden") >= enough).mean()).item())
