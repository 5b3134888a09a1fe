"""When each rank computed, communicated and copied: unions over all streams (or threads), so nothing counts twice."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from ddiag.analysis.host_names import is_loader
from ddiag.analysis.intervals import Intervals, merge, subtract
from ddiag.analysis.names import innermost, of_kind, outermost, spans_union, where_name
from ddiag.model.run import Run

_NOT_WORK = re.compile(
    r"^(?:ProfilerStep|Optimizer\.|DistributedDataParallel|FullyShardedDataParallel|PyTorch Profiler"
    r"|c10d::|c10d_functional::|_c10d_functional::|record_param_comms|(?:gloo|nccl|mpi|ucc|xccl|hccl):)"
)
"""Operator spans that only bracket others, or issue and await communication: never compute."""


@dataclass(frozen=True)
class RankActivity:
    """Unions over all streams of one rank; in a host-only trace over all threads.

    ``compute`` and ``comm`` may overlap each other; ``busy`` is the union of all three.
    """

    compute: Intervals
    comm: Intervals
    copy: Intervals
    busy: Intervals
    on_device: bool


def activity(run: Run) -> dict[int, RankActivity]:
    """The activity of every rank. A rank without any device work is described by its host spans."""
    kernels, copies = run.table("kernels"), run.table("copies")
    with_device = set(kernels["rank"].unique().to_list()) | set(copies["rank"].unique().to_list())
    found: dict[int, RankActivity] = {}
    for rank in sorted(set(run.table("ranks")["rank"].to_list()) | with_device):
        mine = pl.col("rank") == rank
        on_device = rank in with_device
        found[rank] = (
            _device_activity(kernels.filter(mine), copies.filter(mine)) if on_device else _host_activity(run, rank)
        )
    return found


def _device_activity(kernels: pl.DataFrame, copies: pl.DataFrame) -> RankActivity:
    compute = spans_union(of_kind(kernels, "compute"))
    comm = spans_union(of_kind(kernels, "communication"))
    copy = spans_union(copies)
    return RankActivity(compute, comm, copy, merge(compute, comm, copy), on_device=True)


def _host_activity(run: Run, rank: int) -> RankActivity:
    """Without a device: leaf operators are the compute, host collectives the communication, loader spans neither.

    Only leaves count, because an enclosing operator may also wait (SyncBatchNorm, hooks that issue collectives).
    Asynchronous collectives may run while operators do, on the same thread too: they overlap, as on a device.
    """
    mine = run.table("ops").filter(pl.col("rank") == rank)
    comm = spans_union(run.table("collectives").filter((pl.col("rank") == rank) & (pl.col("source") == "host")))
    leaves = where_name(innermost(of_kind(mine, "op")), lambda name: not _NOT_WORK.match(name) and not is_loader(name))
    compute = subtract(spans_union(leaves), spans_union(loader_spans(run, rank)))
    return RankActivity(compute, comm, comm[:0], merge(compute, comm), on_device=False)


def loader_spans(run: Run, rank: int) -> pl.DataFrame:
    """Outermost waits for input on the training thread of *rank* (on any thread when that one is unknown).

    A loader span elsewhere is a background prefetcher: it makes nobody wait.
    """
    waits = where_name(
        run.table("ops").filter((pl.col("rank") == rank) & (pl.col("kind") != "gpu_annotation")), is_loader
    )
    main_tid = training_thread(run, rank)
    if main_tid is not None:
        waits = waits.filter(pl.col("tid") == main_tid)
    return outermost(waits)


def training_thread(run: Run, rank: int) -> int | None:
    """Id of the thread that drives training, where ingest could tell."""
    found = run.table("ranks").filter(pl.col("rank") == rank)["main_tid"].drop_nulls()
    return int(found[0]) if len(found) else None
