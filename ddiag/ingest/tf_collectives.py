"""Collectives of one TensorFlow profile: NCCL kernels where there are any, else the operators on the host.

A host operator is seen when it is handed to the collective executor and when that carries it out; only the second has
an instance key and lasts as long as the transfer (with the wait for the slowest member in it).
"""

from __future__ import annotations

import re

import polars as pl

from ddiag.ingest.facts import Group
from ddiag.model.naming import collective_op

_OPS = (
    (re.compile(r"^CollectiveReduceScatter"), "reduce_scatter"),
    (re.compile(r"^CollectiveReduce"), "all_reduce"),
    (re.compile(r"^CollectiveGather"), "all_gather"),
    (re.compile(r"^CollectiveAllToAll"), "all_to_all"),
    (re.compile(r"^CollectiveBcast"), "broadcast"),
    (re.compile(r"^CollectivePermute"), "send_recv"),
    (re.compile(r"^NcclAllReduce"), "all_reduce"),
    (re.compile(r"^_?NcclReduce"), "reduce"),
    (re.compile(r"^_?NcclBroadcast"), "broadcast"),
)
UNKNOWN_GROUP = "unknown"
_EXECUTOR_THREADS = "collective_ops"


def operation(kind: str) -> str | None:
    """Canonical collective of an operator's type; TensorFlow's CollectiveReduce gives the result to all members."""
    return next((op for pattern, op in _OPS if pattern.match(kind)), None)


def groups_of(events: pl.DataFrame) -> tuple[Group, ...]:
    """The groups whose parameters the profile shows."""
    known = events.filter(pl.col("group_key").is_not_null() & pl.col("group_size").is_not_null())
    sizes = known.group_by("group_key").agg(pl.col("group_size").max()).sort("group_key")
    return tuple(Group(str(key), "TensorFlow collective group", int(size)) for key, size in sizes.iter_rows())


def kernel_calls(kernels: pl.DataFrame, launches: pl.DataFrame, groups: tuple[Group, ...]) -> pl.DataFrame:
    """One row per communication kernel."""
    found = kernels.filter(pl.col("kind") == "communication")
    issued = launches.filter(pl.col("correlation") >= 0).unique("correlation", keep="first")
    found = found.join(issued.select("correlation", enqueue_ns="start_ns"), on="correlation", how="left")
    ops = {name: collective_op(name) or "unknown" for name in found["name"].unique().to_list()}
    only = groups[0] if len(groups) == 1 else None
    return found.select(
        pl.lit(only.name if only else UNKNOWN_GROUP).alias("group"),
        pl.col("name").replace_strict(ops, default="unknown", return_dtype=pl.String).alias("op"),
        pl.lit(only.size if only else None, dtype=pl.Int32).alias("group_size"),
        "stream",
        pl.lit("kernel").alias("source"),
        "name",
        "start_ns",
        "end_ns",
        "enqueue_ns",
        pl.lit(-1, dtype=pl.Int64).alias("external_id"),
    )


def host_calls(spans: pl.DataFrame, on_executor: pl.Series, groups: tuple[Group, ...]) -> pl.DataFrame:
    """One row per collective operator carried out on the host. *on_executor*: the span is on the executor's thread."""
    types = {kind: op for kind in spans["type"].unique().drop_nulls().to_list() if (op := operation(kind)) is not None}
    calls = spans.with_columns(on_executor.alias("on_executor")).filter(pl.col("type").is_in(list(types)))
    for carried_out in (pl.col("instance_key").is_not_null(), pl.col("on_executor")):
        if calls.filter(carried_out).height:
            calls = calls.filter(carried_out)
            break
    sizes = {group.name: group.size for group in groups}
    only = groups[0].name if len(groups) == 1 else UNKNOWN_GROUP
    group = pl.col("group_key").cast(pl.String).fill_null(only)
    return calls.select(
        group.alias("group"),
        pl.col("type").replace_strict(types, default="unknown", return_dtype=pl.String).alias("op"),
        group.replace_strict(sizes, default=None, return_dtype=pl.Int32).alias("group_size"),
        pl.lit(-1, dtype=pl.Int64).alias("stream"),
        pl.lit("host").alias("source"),
        "name",
        "start_ns",
        "end_ns",
        pl.lit(-1, dtype=pl.Int64).alias("external_id"),
    )


def is_executor(thread: str) -> bool:
    """A thread that carries collectives out."""
    return thread.startswith(_EXECUTOR_THREADS)
