"""Blocking calls that let the device run dry, with the operator and the line that made them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.names import outermost, times, where_name
from ddiag.analysis.op_tree import call_tree
from ddiag.analysis.per_step import NS_PER_MS, mean_step_ms, ranks_with_steps, step_of
from ddiag.analysis.rank_rows import rows_of
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import SyncPoints

_NOTICEABLE_NS = 2_000
"""Shorter idle times after a call are launch latency."""
_NOT_USER_CODE = re.compile(
    r"^(?:torch|torchvision|numpy|functorch|triton|multiprocessing|asyncio|concurrent|importlib|logging|tqdm)/"
    r"|site-packages/|lib/python3|^<(?:built-in|frozen|string|eval)|^nn\.Module: "
    r"|^(?:threading|contextlib|functools|typing|runpy|inspect|copy|enum|abc|queue|socket|selectors|tempfile|pickle)\.py"
    r"|^(?:dataclasses|collections|weakref|traceback|linecache|warnings|random|os|re|json|time)\.py"
)
_SCHEMA = {
    "rank": pl.Int32,
    "op": pl.String,
    "where": pl.String,
    "count_per_step": pl.Float64,
    "wait_ms": pl.Float64,
    "stall_ms": pl.Float64,
}


def sync_points(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> SyncPoints | None:
    """Calls that stalled the device, per steady step; None when the evidence shows no device or no host calls."""
    ranks = [rank for rank in ranks_with_steps(windows) if rank in acts and acts[rank].idle is not None]
    if not ranks or not (run.has("launches") or run.has("ops")):
        return None
    table = pl.concat([pl.DataFrame(schema=_SCHEMA), *(_of_rank(run, windows, rank, acts[rank]) for rank in ranks)])
    per_rank = table.group_by("rank").agg(pl.col("stall_ms", "count_per_step").sum()).sort("stall_ms", descending=True)
    if per_rank.is_empty():
        return SyncPoints(table, stall_ms=0.0, stall_share=0.0, count_per_step=0.0)
    worst, stall_ms, count = per_rank.row(0)
    return SyncPoints(table, stall_ms, stall_ms / mean_step_ms(windows, worst), count)


def _of_rank(run: Run, windows: StepWindows, rank: int, act: RankActivity) -> pl.DataFrame:
    """One row per operator and line, most harmful first."""
    steps = windows.steady_of[rank]
    if act.idle is None:
        return pl.DataFrame(schema=_SCHEMA)
    calls = act.idle.syncs.filter(pl.col("stall_ns") >= _NOTICEABLE_NS)
    calls = calls.filter(step_of(steps, times(calls, "start_ns")).is_not_null())
    mine = rows_of(run, "ops", rank)
    operators = outermost(where_name(mine.filter(pl.col("kind") == "op"), lambda name: name.startswith("aten::")))
    frames = where_name(mine.filter(pl.col("kind") == "python"), lambda name: not _NOT_USER_CODE.search(name))
    named = _enclosing(_enclosing(calls, operators, "op"), frames, "where")
    length = pl.col("end_ns") - pl.col("start_ns")
    return (
        named.with_columns(pl.coalesce("op", "name").alias("op"), pl.col("where").fill_null(""))
        .group_by("op", "where")
        .agg(
            (pl.len() / steps.height).alias("count_per_step"),
            (length.sum() / steps.height / NS_PER_MS).alias("wait_ms"),
            (pl.col("stall_ns").sum() / steps.height / NS_PER_MS).alias("stall_ms"),
        )
        .sort("stall_ms", "op", "where", descending=[True, False, False])
        .select(pl.lit(rank, dtype=pl.Int32).alias("rank"), "op", "where", "count_per_step", "wait_ms", "stall_ms")
    )


def _enclosing(calls: pl.DataFrame, spans: pl.DataFrame, column: str) -> pl.DataFrame:
    """*calls* with the name of the nearest of *spans* around each on its thread, null where there is none."""
    numbered = calls.with_row_index("_call")
    inner = numbered.select("rank", "tid", "start_ns", "end_ns", pl.col("_call").cast(pl.Int64), _name=pl.lit(None))
    outer = spans.select("rank", "tid", "start_ns", "end_ns", _call=pl.lit(-1), _name=pl.col("name").cast(pl.String))
    tree = call_tree(pl.concat([outer, inner], how="vertical_relaxed"))
    names = tree["_name"].gather(tree["parent"].replace(-1, None))
    found = tree.with_columns(names.alias(column)).filter(pl.col("_call") >= 0).select(pl.col("_call"), column)
    return numbered.with_columns(pl.col("_call").cast(pl.Int64)).join(found, on="_call", how="left").drop("_call")
