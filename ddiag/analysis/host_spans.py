"""Spans of the host threads that drive training."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.host_names import is_loader, is_optimizer, is_pooled_loader, is_synchronising
from ddiag.analysis.intervals import covered
from ddiag.analysis.memo import once_per_run
from ddiag.analysis.names import of_kind, outermost, spans_union, times, where_name
from ddiag.analysis.rank_rows import rows_of
from ddiag.analysis.recorded.marks import in_phase, marks
from ddiag.model.run import Run

_ISSUING = ("launch", "graph", "copy", "memset")


@once_per_run
def training_thread(run: Run, rank: int) -> int | None:
    """Id of the thread that drives training, where ingest could tell."""
    found = rows_of(run, "ranks", rank)["main_tid"].drop_nulls()
    return int(found[0]) if len(found) else None


@once_per_run
def issuing_threads(run: Run, rank: int) -> list[int]:
    """Threads that issue device work: the training thread and those of the autograd engine."""
    calls = of_kind(rows_of(run, "launches", rank), *_ISSUING)
    main = training_thread(run, rank)
    return sorted({*calls["tid"].drop_nulls().unique().to_list(), *([main] if main is not None else [])})


@once_per_run
def loader_spans(run: Run, rank: int) -> pl.DataFrame:
    """Outermost waits for input on a thread that drives training (on any thread when none is known).

    A loader span elsewhere is a background prefetcher: it makes nobody wait. Without ProfilerStep ingest may take
    autograd's thread, which launches most, for the driver; so threads that update parameters or launch kernels follow.
    """
    if run.recorded:
        return _recorded_waits(run, rank)
    host = rows_of(run, "ops", rank).filter(pl.col("kind") != "gpu_annotation")
    waits = where_name(host, is_loader)
    main = training_thread(run, rank)
    if waits.is_empty() or main is None:
        return outermost(waits)
    updating = where_name(host, is_optimizer)["tid"].unique().to_list()
    for threads in ([main], updating, issuing_threads(run, rank)):
        mine = waits.filter(pl.col("tid").is_in(threads))
        if not mine.is_empty():
            return outermost(mine)
    return outermost(where_name(waits, is_pooled_loader))


def _recorded_waits(run: Run, rank: int) -> pl.DataFrame:
    """Phases in which the training thread got its next batch; what evaluation waits for is evaluation."""
    mine = marks(run, rank).filter(pl.col("phase") == "input")
    spans = mine.select("rank", "tid", pl.col("phase").cast(pl.String).alias("name"), "start_ns", "end_ns")
    start, evaluation = times(spans, "start_ns"), in_phase(run, rank, "evaluation")
    return outermost(spans.filter(pl.Series(covered(evaluation, start, start + 1) == 0, dtype=pl.Boolean)))


@once_per_run
def blocking_calls(run: Run, rank: int) -> pl.DataFrame:
    """Calls in which a thread that issues work waits for the device, outside the loader: tid, name, start_ns, end_ns.

    Runtime calls where they were recorded, else operators that cannot return before the device has finished.
    """
    calls = rows_of(run, "launches", rank).filter(pl.col("tid").is_in(issuing_threads(run, rank)))
    blocking_copies = where_name(of_kind(calls, "copy"), lambda name: "async" not in name.lower())
    found = pl.concat([of_kind(calls, "sync"), blocking_copies])
    if found.is_empty():
        found = where_name(of_kind(rows_of(run, "ops", rank), "op"), is_synchronising)
    chosen = outermost(found.select("rank", "tid", pl.col("name").cast(pl.String), "start_ns", "end_ns"))
    return _outside(chosen, loader_spans(run, rank)).sort("start_ns")


def _outside(spans: pl.DataFrame, loader: pl.DataFrame) -> pl.DataFrame:
    """Spans that do not begin inside a loader span of the same thread."""
    if loader.is_empty() or spans.is_empty():
        return spans
    inside = covered(spans_union(loader), times(spans, "start_ns"), times(spans, "start_ns") + 1) > 0
    return spans.filter(~(pl.Series(inside) & spans["tid"].is_in(loader["tid"].unique().to_list())))
