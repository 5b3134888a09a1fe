"""Host-side habits that cost time: garbage collection, saving, logging, compilation, debugging modes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.host_names import is_compilation, is_garbage_collection, is_logging, is_save, loader_in_process
from ddiag.analysis.host_spans import issuing_threads
from ddiag.analysis.intervals import Intervals, covered
from ddiag.analysis.names import spans_union, times, where_name
from ddiag.analysis.per_step import NS_PER_MS, host_windows, ms_per_step, ranks_with_steps
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import PythonOverhead

_BACKWARD_NODE = "autograd::engine::evaluate_function"
_NAN_CHECKS = 0.5
"""Checks for NaN per backward node from which anomaly detection must be on: it checks every gradient."""
_ANOMALY_FRAME = re.compile(r"torch/autograd/anomaly_mode\.py\(\d+\): __enter__")
_UNUSED_SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
_WORKERS_KEY = re.compile(r"(?:^|[._])num_workers$")
_GC_RANK_MS = 0.1
"""A rank with less collection per step is not named."""


def python_overhead(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> PythonOverhead | None:
    """Overheads of the worst rank; None when no host spans were recorded."""
    ranks = [rank for rank in ranks_with_steps(windows) if rank in acts]
    if not run.has("ops") or not ranks:
        return None
    gc_ms = _per_step(run, windows, ranks, is_garbage_collection)
    compiled = _spans(run, ranks, is_compilation)
    in_steps = {rank: covered(compiled[rank], *host_windows(windows, rank)).sum() / NS_PER_MS for rank in ranks}
    return PythonOverhead(
        gc_ms_per_step=max(gc_ms.values()),
        gc_ranks=tuple(rank for rank, ms in gc_ms.items() if ms >= _GC_RANK_MS),
        checkpoint_ms=_longest_save_ms(run, windows, ranks),
        logging_ms_per_step=max(_per_step(run, windows, ranks, is_logging).values()),
        compile_ms=float(max(in_steps.values())),
        anomaly_mode=_anomaly_frame(run, compiled) or _checks_every_gradient(run),
        find_unused_ms=_find_unused_ms(run, windows, ranks),
        dataloader_workers=_dataloader_workers(run),
    )


def _spans(run: Run, ranks: list[int], wanted: Callable[[str], bool]) -> dict[int, Intervals]:
    """Union of the wanted spans on the threads of each rank that drive training."""
    chosen = where_name(run.table("ops").filter(pl.col("kind") != "gpu_annotation"), wanted)
    found = {}
    for rank in ranks:
        mine = chosen.filter(pl.col("rank") == rank)
        threads = issuing_threads(run, rank) if mine.height else []
        found[rank] = spans_union(mine.filter(pl.col("tid").is_in(threads)) if threads else mine)
    return found


def _per_step(run: Run, windows: StepWindows, ranks: list[int], wanted: Callable[[str], bool]) -> dict[int, float]:
    spans = _spans(run, ranks, wanted)
    return {rank: ms_per_step(spans[rank], host_windows(windows, rank)) for rank in ranks}


def _longest_save_ms(run: Run, windows: StepWindows, ranks: list[int]) -> float:
    """Most time one step of one rank spent saving, warm-up steps included."""
    spans = _spans(run, ranks, is_save)
    longest = 0
    for rank in ranks:
        steps = windows.table.filter(pl.col("rank") == rank)
        saving = covered(spans[rank], times(steps, "host_start_ns"), times(steps, "host_end_ns"))
        longest = max(longest, int(saving.max(initial=0)))
    return longest / NS_PER_MS


def _anomaly_frame(run: Run, compiled: Mapping[int, Intervals]) -> bool:
    """Anomaly detection was switched on, other than by the compiler while it traces."""
    frames = where_name(run.table("ops"), lambda name: _ANOMALY_FRAME.search(name) is not None)
    for rank, compiling in compiled.items():
        start = times(frames.filter(pl.col("rank") == rank), "start_ns")
        if (covered(compiling, start, start + 1) == 0).any():
            return True
    return False


def _checks_every_gradient(run: Run) -> bool:
    """Nearly every backward node is followed by a check for NaN: what anomaly detection does, and nothing else."""
    ops = run.table("ops")
    nodes = where_name(ops, lambda name: name.startswith(_BACKWARD_NODE))
    checks = where_name(ops, lambda name: name == "aten::isnan")
    inside = 0
    for (rank,), mine in checks.group_by("rank"):
        backward = spans_union(nodes.filter(pl.col("rank") == rank))
        start = times(mine, "start_ns")
        inside += int(np.count_nonzero(covered(backward, start, start + 1)))
    return inside > 0 and inside >= _NAN_CHECKS * nodes.height


def _find_unused_ms(run: Run, windows: StepWindows, ranks: list[int]) -> float | None:
    """Mean over ranks of DDP's search for unused parameters per step; None when it was not recorded."""
    if where_name(run.table("ops"), lambda name: name == _UNUSED_SEARCH).is_empty():
        return None
    return float(np.mean(list(_per_step(run, windows, ranks, lambda name: name == _UNUSED_SEARCH).values())))


def _dataloader_workers(run: Run) -> int | None:
    """Loader workers: as configured, or 0 when the loader's class says that it has none."""
    config = where_name(run.table("config"), lambda key: _WORKERS_KEY.search(key) is not None, column="key")
    stated = config["value"].cast(pl.Int64, strict=False).drop_nulls()
    if len(stated):
        return int(stated[0])
    names = run.table("ops")["name"].unique().drop_nulls().to_list()
    seen = {loader_in_process(name) for name in names} - {None}
    return 0 if seen == {True} else None
