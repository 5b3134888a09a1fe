"""Achieved against expected bandwidth of each group; abstains rather than accuses.

Only pure transfers count (all members seen, waiting subtracted, nothing else on the links) and only messages large
enough for bandwidth to rule.
Expected is the fabric of the node where the group is known to lie in one, else the best group of the same size of this
job; a group without either has no expectation.
"""

from __future__ import annotations

import polars as pl

from ddiag.analysis.bandwidth import algorithm_gbps, bus_factor
from ddiag.analysis.expected_bandwidth import expected_gbps
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, JobFacts, Links

MIN_BYTES = 32 << 20
"""Messages from which latency does not matter (algorithm D10)."""
SMALL_BYTES, LONG_MS = 4 << 20, 2.0
"""Smaller ones, down to DDP's buckets and below, count when they take so long that no latency can be the reason."""
MIN_CALLS = 3
"""Calls of one kind that a verdict needs."""
GOOD_QUANTILE = 0.75
"""A slow link is slow always: the better calls of a group are compared, not those disturbed by compute."""
SLOW_EFFICIENCY = 0.5
_BUS_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def links(run: Run, facts: JobFacts, collectives: Collectives | None) -> Links | None:
    """Bandwidth by group and operation; None when no group moved enough bytes in pure, matched transfers."""
    if collectives is None or not collectives.timed_on_device:
        return None
    measured = _measured(collectives.table)
    if measured.is_empty():
        return None
    measured = measured.join(_places(run, facts, collectives.table), on="comm", how="left", maintain_order="left")
    rows = [_judged(row, measured) for row in measured.iter_rows(named=True)]
    table = pl.DataFrame(rows, schema=_SCHEMA)
    judged = table.filter(pl.col("efficiency").is_not_null())
    slow = judged.filter(pl.col("efficiency") < SLOW_EFFICIENCY)["group"].unique().sort().to_list()
    worst = judged["efficiency"].to_list()
    return Links(table=table, worst_efficiency=min(worst) if worst else None, slow_groups=tuple(slow))


_SCHEMA = {
    "group": pl.String, "op": pl.String, "group_size": pl.Int32, "bytes": pl.Int64, "busbw_gbps": pl.Float64,
    "expected_gbps": pl.Float64, "efficiency": pl.Float64, "basis": pl.String,
}  # fmt: skip


def _measured(table: pl.DataFrame) -> pl.DataFrame:
    """comm, group, op, group_size, bytes (median), busbw_gbps of the large, completely matched calls."""
    whole = (
        _alone(table)
        .filter(
            (pl.col("ranks_matched") == pl.col("group_size"))
            & (pl.col("group_size") > 1)
            & (pl.col("bytes") >= SMALL_BYTES)
            & pl.col("op").is_in(_BUS_OPS)
            & (pl.col("source") == "kernel")
            & pl.col("transfer_ms").is_not_null()
        )
        .unique("call")
    )
    speed = algorithm_gbps("bytes", "transfer_ms") * bus_factor()
    return (
        whole.with_columns(busbw_gbps=speed)
        .group_by("comm", "group", "op", "group_size")
        .agg(
            pl.len().alias("calls"),
            pl.col("bytes").median().cast(pl.Int64),
            pl.col("busbw_gbps").quantile(GOOD_QUANTILE),
            pl.col("transfer_ms").quantile(1 - GOOD_QUANTILE),
        )
        .filter((pl.col("bytes") >= MIN_BYTES) | (pl.col("transfer_ms") >= LONG_MS))
        .filter((pl.col("calls") >= MIN_CALLS) & (pl.col("busbw_gbps") > 0))
        .sort("group", "op", "comm")
    )


def _alone(table: pl.DataFrame) -> pl.DataFrame:
    """Calls during whose transfer no member moved other data: two at once share the links."""
    began = pl.col("end_ns") - (pl.coalesce("transfer_ms", "dur_ms") * 1e6).cast(pl.Int64)
    ordered = table.with_columns(began=began).sort("rank", "began")
    before = pl.col("end_ns").cum_max().shift(1).over("rank") > pl.col("began")
    after = pl.col("began").shift(-1).over("rank") < pl.col("end_ns")
    shared = before.fill_null(value=False) | after.fill_null(value=False)
    return ordered.with_columns(shared=shared).filter(~pl.col("shared").any().over("call"))


def _places(run: Run, facts: JobFacts, table: pl.DataFrame) -> pl.DataFrame:
    """comm, shape (how its ranks lie apart), device (the one name of its members, or null), one_node (surely)."""
    hosts = pl.DataFrame(list(facts.host_of.items()), schema={"rank": pl.Int32, "host": pl.String}, orient="row")
    number = run.table("kernels").filter(pl.col("device") >= 0).group_by("rank").agg(number=pl.col("device").min())
    members = table.select("comm", "rank").unique()
    for facts_of_rank in (run.table("ranks").select("rank", "device_name").unique("rank"), hosts, number):
        members = members.join(facts_of_rank, on="rank", how="left")
    # Without host names: neighbouring ranks that use device 0, 1, 2 … of their process sit in one machine.
    neighbours = pl.col("rank").max() - pl.col("rank").min() < pl.len()
    numbered = neighbours & pl.col("number").is_not_null().all() & (pl.col("number").n_unique() == pl.len())
    return (
        members.sort("comm", "rank")
        .group_by("comm")
        .agg(
            shape=(pl.col("rank") - pl.col("rank").min()).cast(pl.String).str.join(","),
            device=pl.when(pl.col("device_name").n_unique() == 1).then(pl.col("device_name").first()),
            one_node=pl.when(pl.col("host").is_not_null().all())
            .then(pl.col("host").n_unique() == 1)
            .otherwise(numbered),
        )
    )


def _judged(row: dict[str, object], measured: pl.DataFrame) -> dict[str, object]:
    found = _expectation(row, measured)
    expected, basis = found if found is not None else (None, "")
    busbw = float(str(row["busbw_gbps"]))
    return {name: row[name] for name in ("group", "op", "group_size", "bytes", "busbw_gbps")} | {
        "expected_gbps": expected,
        "efficiency": busbw / expected if expected else None,
        "basis": basis,
    }


def _expectation(row: dict[str, object], measured: pl.DataFrame) -> tuple[float, str] | None:
    if row["one_node"] and row["device"] is not None:
        by_fabric = expected_gbps(str(row["device"]), int(str(row["group_size"])))
        if by_fabric is not None:
            return by_fabric
    return _best_of_its_like(row, measured)


def _best_of_its_like(row: dict[str, object], measured: pl.DataFrame) -> tuple[float, str] | None:
    """The best group that does the same: operation, about the same bytes, ranks equally far apart, the same devices."""
    size = int(str(row["bytes"]))
    alike = measured.filter(
        (pl.col("op") == row["op"])
        & (pl.col("shape") == row["shape"])
        & (pl.col("one_node") == row["one_node"])
        & pl.col("bytes").is_between(size // 2, size * 2)
        & pl.col("device").eq_missing(pl.lit(row["device"], dtype=pl.String))
    )
    if alike.height < 2:
        return None
    return float(str(alike["busbw_gbps"].max())), f"best of {alike.height} groups alike in this job"
