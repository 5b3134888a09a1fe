"""Step boundaries of traces that mark none: from the optimizer, the loader, or what repeats on the device."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import polars as pl

from ddiag.analysis.host_spans import loader_spans
from ddiag.analysis.names import of_kind, times, where_name
from ddiag.analysis.period import period_starts
from ddiag.model.run import Run

_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")
_PARTIAL = 0.5
"""A piece at the edge of a capture shorter than this share of a median step is no step."""
_MARKED_RANKS = 0.9
"""Share of the ranks that a kind of mark must be seen on to be used."""

STEP_SCHEMA = {"rank": pl.Int32, "step": pl.Int64, "host_start_ns": pl.Int64, "host_end_ns": pl.Int64}


def infer_steps(run: Run) -> tuple[pl.DataFrame, str]:
    """Steps (rank, step, host_start_ns, host_end_ns) and what they were inferred from; empty when nothing repeats."""
    ranks = run.table("captures")["rank"].n_unique()
    for describe, finder in _FINDERS.items():
        steps = _between(run, finder(run))
        if not steps.is_empty() and steps["rank"].n_unique() >= _MARKED_RANKS * ranks:
            return steps, describe
    return pl.DataFrame(schema=STEP_SCHEMA), ""


def optimizer_ends(run: Run) -> pl.DataFrame:
    """A step ends where the optimizer's does. More updates than batches (two optimizers): the batches tell."""
    spans = where_name(_host_spans(run), lambda name: _OPTIMIZER_STEP.match(name) is not None)
    if spans.is_empty():
        return _marks(spans)
    last = spans.sort("end_ns").group_by("rank", maintain_order=True).agg(pl.col("name").last())
    ends = spans.join(last, on=["rank", "name"]).select("rank", pl.col("end_ns").alias("at_ns"))
    batches = _loader_starts(run)
    return batches if 2 * last.height <= batches.height < ends.height else ends


def _zero_grads(run: Run) -> pl.DataFrame:
    return _marks(where_name(_host_spans(run), lambda name: _ZERO_GRAD.match(name) is not None))


def _loader_starts(run: Run) -> pl.DataFrame:
    ranks = run.table("ranks")["rank"].to_list()
    return pl.concat([_marks(run.table("ops").clear()), *(_marks(loader_spans(run, rank)) for rank in ranks)])


def _repeating_kernels(run: Run) -> pl.DataFrame:
    """Starts of the period of the busiest compute stream."""
    kernels = of_kind(run.table("kernels"), "compute")
    load = kernels.group_by("rank", "device", "stream").len().sort("len", descending=True)
    busiest = load.unique("rank", keep="first").select("rank", "device", "stream")
    return _periodic(run, kernels.join(busiest, on=["rank", "device", "stream"]), pl.col("name").cast(pl.String))


def _repeating_collectives(run: Run) -> pl.DataFrame:
    calls = run.table("collectives")
    return _periodic(run, calls, pl.concat_str(["group", "op", "bytes_in"], separator="/", ignore_nulls=True))


_FINDERS: dict[str, Callable[[Run], pl.DataFrame]] = {
    "the optimizer's step": optimizer_ends,
    "zero_grad": _zero_grads,
    "waits for the next batch": _loader_starts,
    "the repeating sequence of kernels": _repeating_kernels,
    "the repeating sequence of collectives": _repeating_collectives,
}


def _periodic(run: Run, frame: pl.DataFrame, label: pl.Expr) -> pl.DataFrame:
    """Starts of each rank's period; none where the repetition need not be steps.

    A single forward pass repeats its layers: without any backward operator a sequence is believed only when no
    operators were recorded at all.
    """
    operators = of_kind(run.table("ops"), "op")
    if not operators.is_empty() and where_name(operators, lambda name: bool(_BACKWARD.search(name))).is_empty():
        return _marks(frame.clear())
    rows = []
    for (rank,), mine in frame.sort("rank", "start_ns").group_by("rank", maintain_order=True):
        codes = mine.select(label.rank("dense").cast(pl.Int64)).to_series().to_numpy()
        at_ns = period_starts(codes, times(mine, "start_ns"), times(mine, "end_ns"))
        rows.append(pl.DataFrame({"rank": pl.Series([rank] * at_ns.size, dtype=pl.Int32), "at_ns": at_ns}))
    return pl.concat([_marks(frame.clear()), *rows])


def _host_spans(run: Run) -> pl.DataFrame:
    return of_kind(run.table("ops"), "op", "annotation")


def _marks(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.select("rank", pl.col("start_ns").alias("at_ns"))


def _between(run: Run, marks: pl.DataFrame) -> pl.DataFrame:
    """Steps from one mark to the next inside each capture; the pieces before and after them where long enough."""
    captures = run.table("captures").sort(["rank", "start_ns"])
    rows: list[tuple[int, int, int, int]] = []
    first_number: dict[int, int] = {}
    for rank, start, end in captures.select("rank", "start_ns", "end_ns").iter_rows():
        at = marks.filter((pl.col("rank") == rank) & pl.col("at_ns").is_between(start, end, closed="none"))
        inner = np.unique(times(at, "at_ns"))
        if not inner.size:
            continue
        edges = np.concatenate(([start], inner, [end])) if inner.size > 1 else np.array([start, end])
        number = first_number.get(rank, 0)
        kept = _whole(np.diff(edges))
        rows.extend((rank, number + k, int(edges[k]), int(edges[k + 1])) for k in kept)
        first_number[rank] = number + edges.size - 1
    return pl.DataFrame(rows, schema=STEP_SCHEMA, orient="row")


def _whole(lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """Indices of the steps to keep: all between two marks, and edge pieces that may be whole steps."""
    if lengths.size < 3:
        return list(range(lengths.size))
    typical = float(np.median(lengths[1:-1]))
    inner = list(range(1, lengths.size - 1))
    head = [0] if lengths[0] >= _PARTIAL * typical else []
    tail = [lengths.size - 1] if lengths[-1] >= _PARTIAL * typical else []
    return head + inner + tail
