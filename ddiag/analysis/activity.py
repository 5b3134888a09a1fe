"""When each rank computed, communicated and copied: unions over all streams (or threads), so nothing counts twice."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from ddiag.analysis.host_names import is_loader
from ddiag.analysis.host_spans import loader_spans
from ddiag.analysis.idle_causes import IdleCauses, idle_causes
from ddiag.analysis.intervals import Intervals, merge, subtract
from ddiag.analysis.names import innermost, of_kind, spans_union, where_name
from ddiag.analysis.rank_rows import DEVICE_WORK, rows_of
from ddiag.model.run import Run

_NOT_WORK = re.compile(
    r"^(?:ProfilerStep|Optimizer\.|DistributedDataParallel|FullyShardedDataParallel|PyTorch Profiler"
    r"|c10d::|c10d_functional::|_c10d_functional::|record_param_comms|(?:gloo|nccl|mpi|ucc|xccl|hccl):)"
)
"""Operator spans that only bracket others, or issue and await communication: never compute."""
_ISSUING = re.compile(r"^(?:c10d::|_?c10d_functional::|record_param_comms)")
"""Of those, the ones that belong to communication wherever they are nested."""
_BRACKET = re.compile(r"^(?:autograd::|torch::autograd::|torch::distributed::|torch::jit::)")
"""Spans of the engine, whose own time is not an operator's."""


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
    idle: IdleCauses | None = None
    """Why the device was idle; None without a device."""


def activity(run: Run) -> dict[int, RankActivity]:
    """The activity of every rank. A rank without any device work is described by its host spans."""
    kernels, copies = run.table("kernels"), run.table("copies")
    with_device = set(kernels["rank"].unique().to_list()) | set(copies["rank"].unique().to_list())
    found: dict[int, RankActivity] = {}
    for rank in sorted(set(run.table("ranks")["rank"].to_list()) | with_device):
        found[rank] = _device_activity(run, rank) if rank in with_device else _host_activity(run, rank)
    return found


def _device_activity(run: Run, rank: int) -> RankActivity:
    work = rows_of(run, DEVICE_WORK, rank)
    compute, comm, copy = (spans_union(of_kind(work, kind)) for kind in ("compute", "communication", "copy"))
    busy = merge(compute, comm, copy)
    return RankActivity(compute, comm, copy, busy, on_device=True, idle=idle_causes(run, rank, busy, work))


def _host_activity(run: Run, rank: int) -> RankActivity:
    """Without a device: operators are the compute, host collectives the communication, loader spans neither.

    Asynchronous collectives may run while operators do, on the same thread too: they overlap, as on a device.
    """
    mine = rows_of(run, "ops", rank)
    comm = spans_union(rows_of(run, "collectives", rank).filter(pl.col("source") == "host"))
    threads = [_thread_compute(group) for _, group in of_kind(mine, "op").group_by("tid")]
    compute = subtract(merge(*threads), spans_union(loader_spans(run, rank)))
    return RankActivity(compute, comm, comm[:0], merge(compute, comm), on_device=False)


def _thread_compute(ops: pl.DataFrame) -> Intervals:
    """Time of one thread in operators of a library (aten::mm with what it calls) and in leaves of any other name.

    Spans that only bracket others (autograd nodes, DistributedDataParallel, a SyncBatchNorm) may also wait: what they
    spend outside their operators does not count, and neither does issuing or awaiting communication.
    """
    library = where_name(ops, lambda name: "::" in name and not _BRACKET.match(name))
    work = pl.concat([library, innermost(ops)])
    work = where_name(work, lambda name: not _NOT_WORK.match(name) and not is_loader(name))
    return subtract(spans_union(work), spans_union(where_name(ops, lambda name: _ISSUING.match(name) is not None)))
