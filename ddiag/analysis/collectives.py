"""Communication: every call with its bytes, waiting, transfer and exposed time, matched across ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.bandwidth import algorithm_gbps, bus_factor, message_bytes
from ddiag.analysis.clock import Alignment
from ddiag.analysis.communicators import timed_calls, with_communicators
from ddiag.analysis.exposure import communication_time, with_exposure
from ddiag.analysis.matching import numbers_are_recorded, with_calls, with_steps
from ddiag.analysis.steps import StepWindows
from ddiag.analysis.waiting import split
from ddiag.model.run import Run
from ddiag.model.signals import Collectives

_COLUMNS = (
    "rank", "group", "op", "seq", "step", "bytes", "dtype", "group_size", "start_ns", "end_ns", "dur_ms", "wait_ms",
    "transfer_ms", "exposed_ms", "matched", "source", "call", "comm", "ranks_matched", "exposed_wait_ms", "enqueue_ns",
    "stream", "name", "external_id", "label", "asynchronous", "phase",
)  # fmt: skip
_PER_STEP = ("dur_ms", "wait_ms", "transfer_ms", "exposed_ms")


def match(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> Collectives | None:
    """Match the calls of *run* across ranks; None when no call with a duration lies in a steady step."""
    calls = timed_calls(run)
    if calls.is_empty():
        return None
    calls = with_steps(with_communicators(run, calls), windows)
    calls, left_out = with_calls(calls, numbered=numbers_are_recorded(run, windows))
    calls, alignment, doubted = split(calls)
    calls = _with_whole_world(run, calls).filter("steady").with_columns(bytes=message_bytes())
    if calls.is_empty():
        return None
    table = with_exposure(calls, acts).select(_COLUMNS).sort("rank", "start_ns", "end_ns")
    world = run.table("ranks")["world_size"].max()
    return dataclasses.replace(
        _collectives(table, windows, acts, alignment, "; ".join(left_out + doubted)),
        unseen_ms=_unseen_ms(table, int(world) if isinstance(world, int) else None),
    )


def _unseen_ms(table: pl.DataFrame, world: int | None) -> float:
    """Exposed time per rank and step of the calls that not all members were seen to take part in."""
    # A group of unknown size may be the whole job, and has two members at least: nobody communicates alone.
    members = pl.coalesce("group_size", pl.lit(world or 2, dtype=pl.Int32))
    unseen = table.filter(pl.col("ranks_matched") < members)
    steps = table.select(pl.struct("rank", "step").n_unique()).item()
    return float(unseen["exposed_ms"].sum()) / steps if steps else 0.0


def _with_whole_world(run: Run, calls: pl.DataFrame) -> pl.DataFrame:
    """A call of a nameless group in which all ranks of the job were seen to take part has as many members."""
    world = run.table("ranks")["world_size"].drop_nulls()
    if world.is_empty() or world.n_unique() != 1:
        return calls
    everybody = pl.col("matched") & pl.col("wait_ms").is_not_null() & (pl.col("ranks_matched") == int(world[0]))
    size = pl.when(everybody).then(pl.lit(int(world[0]), dtype=pl.Int32))
    return calls.with_columns(group_size=pl.coalesce("group_size", size))


def _collectives(
    table: pl.DataFrame, windows: StepWindows, acts: Mapping[int, RankActivity], alignment: Alignment, note: str
) -> Collectives:
    time = communication_time(windows, acts)
    waited = table.filter(pl.col("wait_ms").is_not_null())
    return Collectives(
        table=table,
        summary=_summary(table),
        comm_ms=time.comm_ms,
        exposed_ms=time.exposed_ms,
        blocking_ms=time.blocking_ms,
        overlapped_ms=time.comm_ms - time.exposed_ms,
        exposed_share=time.exposed_ms / time.step_ms if time.step_ms > 0 else 0.0,
        overlap_share=1.0 - time.exposed_ms / time.comm_ms if time.comm_ms > 0 else 0.0,
        matched_ranks=max(waited["rank"].n_unique(), 1),
        clock_error_us=alignment.error_us,
        timed_on_device=bool((table["source"] == "kernel").any()),
        note=note,
    )


def _summary(table: pl.DataFrame) -> pl.DataFrame:
    """One row per group and operation; times are per step of a rank that takes part.

    A sum of waiting is null when no call of the row has any. Bandwidth is the median over calls that were seen on all
    members: with members missing, the shortest duration may still contain waiting.
    """
    rank_steps = pl.struct("rank", "step").n_unique()
    sums = [
        pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum() / rank_steps).alias(name)
        for name in _PER_STEP
    ]
    complete = (pl.col("ranks_matched") == pl.col("group_size")) & (pl.col("group_size") > 1)
    speed = pl.when(complete & pl.col("transfer_ms").is_not_null()).then(algorithm_gbps("bytes", "transfer_ms"))
    return (
        table.with_columns(speed=speed, bus=speed * bus_factor())
        .group_by("group", "op")
        .agg(
            pl.col("bytes").median().cast(pl.Int64),
            pl.col("group_size").max(),
            (pl.len() / rank_steps).alias("count_per_step"),
            *sums,
            pl.col("speed").median().alias("algbw_gbps"),
            pl.col("bus").median().alias("busbw_gbps"),
        )
        .sort("dur_ms", descending=True)
    )
