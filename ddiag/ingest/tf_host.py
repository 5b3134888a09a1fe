"""Spans of TensorFlow's host threads: which are operators of the model, which make input, which mark steps.

A profile mixes what ran (kernels of operators, ``scope/name:Type``) with the runtime around it (executors, thread
pools, tf.data iterators). Only the first is compute. Functions of tf.data (map, filter, generators) run operators on
the same pools as the model: what they do is making input. They are recognised by thread, or by the id that
``InstantiatedCapturedFunction`` shares with the executor it starts.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.ingest.tf_events import Line

Mask = npt.NDArray[np.bool_]

_OPERATOR = re.compile(r"^(?!.*::)[A-Za-z0-9_.][^:\s]*:([A-Za-z_]\w*)$")
_PYTHON_FILE = re.compile(r"^\$(\S+\.py):(\d+) (.+)$")
_PYTHON_BUILTIN = re.compile(r"^\$(\S+) (\S+)$")
_BOOKKEEPING = "ThreadpoolListener::"
"""Marks of the work queue; the viewer draws spans between them."""
_NOT_COMPUTE = re.compile(
    r"^(?:Collective|_?Nccl|RemoteCall|PartitionedCall|StatefulPartitionedCall|SymbolicGradient|While|If|StatelessIf"
    r"|StatelessWhile|_?Send|_?Recv|_Host(?:Send|Recv)|_?(?:Device)?Arg$|_?(?:Device)?Retval$|.*Iterator|EagerPyFunc|PyFunc"
    r"|Prefetch|NoOp|Identity\w*|Enter|Exit|Switch|Merge|NextIteration|Barrier\w*|.*Dataset)"
)
"""Types of operators that transfer, await or call others."""
_CONSUMER_THREAD = "tf_data_iterator_get_next"
_DATA_THREAD = "tf_data_"
_CAPTURED = "InstantiatedCapturedFunction::"
_FUNCTION = re.compile(r"^EagerLocalExecute: (__inference_.+)$")
_MAX_NESTING = 8
"""Functions of tf.data call functions at most this deep."""


def operator_type(name: str) -> str | None:
    """``MatMul`` of ``model/dense/MatMul:MatMul``; None for a span of the runtime."""
    found = _OPERATOR.match(name)
    return found.group(1) if found else None


def python_name(name: str) -> str | None:
    """A frame of the Python tracer as other profilers write it; None for anything else."""
    if not name.startswith("$"):
        return None
    found = _PYTHON_FILE.match(name)
    if found:
        return f"{found.group(1)}({found.group(2)}): {found.group(3)}"
    found = _PYTHON_BUILTIN.match(name)
    return f"<built-in function {found.group(2)}>" if found else name[1:]


def host_spans(events: pl.DataFrame, lines: list[Line]) -> pl.DataFrame:
    """Rows of *events* that are spans of host threads, with tid, kind (as in the table ops) and operator type."""
    host = [place for place, line in enumerate(lines) if line.is_host]
    spans = events.filter(
        pl.col("line").is_in(host)
        & (pl.col("end_ns") > pl.col("start_ns"))
        & ~pl.col("name").str.starts_with(_BOOKKEEPING)
        & pl.col("correlation_id").is_null()
    )
    names = spans["name"].unique().to_list()
    types = {name: found for name in names if (found := operator_type(name)) is not None}
    python = {name: found for name in names if (found := python_name(name)) is not None}
    compute = [name for name, kind in types.items() if not _NOT_COMPUTE.match(kind)]
    tids = pl.Series([line.tid for line in lines], dtype=pl.Int64)
    return spans.with_columns(
        tids.gather(spans["line"]).alias("tid"),
        pl.when(pl.col("name").is_in(list(python)))
        .then(pl.lit("python"))
        .when(pl.col("name").is_in(compute) & ~pl.Series(_makes_input(spans, lines)))
        .then(pl.lit("op"))
        .otherwise(pl.lit("annotation"))
        .alias("kind"),
        pl.col("name").replace_strict(types, default=None, return_dtype=pl.String).alias("type"),
        pl.col("name").replace(python),
    )


def _makes_input(spans: pl.DataFrame, lines: list[Line]) -> Mask:
    """What runs on threads of tf.data, or in an executor that one of its functions started."""
    on_thread = [line.name.startswith(_DATA_THREAD) and not line.name.startswith(_CONSUMER_THREAD) for line in lines]
    found: Mask = np.array(on_thread, dtype=bool)[spans["line"].to_numpy()]
    ids = set(spans.filter(pl.col("name").str.starts_with(_CAPTURED))["id"].drop_nulls().to_list())
    for _ in range(_MAX_NESTING):
        inside = _inside(spans, spans.filter(pl.col("name").is_in(_EXECUTORS) & _context().is_in(list(ids))))
        calls = spans.filter(pl.Series(inside) & (pl.col("name") == "FunctionRun"))
        more = set(calls.select(_context())["context"].drop_nulls().to_list()) - ids
        if not more:
            return found | inside
        ids |= more
    return found | inside


_EXECUTORS = ("ExecutorState::Process", "FunctionRun")


def _context() -> pl.Expr:
    return pl.coalesce("step_id", "id").alias("context")


def _inside(spans: pl.DataFrame, outer: pl.DataFrame) -> Mask:
    """Which of *spans* begin within one of *outer* on its own thread."""
    out = np.zeros(spans.height, dtype=bool)
    line, start = spans["line"].to_numpy(), spans["start_ns"].to_numpy()
    for (place,), mine in outer.sort("start_ns").group_by("line", maintain_order=True):
        rows = np.flatnonzero(line == place)
        reach = np.maximum.accumulate(mine["end_ns"].to_numpy())
        before = np.searchsorted(mine["start_ns"].to_numpy(), start[rows], side="right") - 1
        out[rows] = (before >= 0) & (start[rows] < reach[np.maximum(before, 0)])
    return out


def step_marks(spans: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """(step, tid, start_ns, end_ns) of every training step, and a note on what they are where that is not plain.

    Marks are ``tf.profiler.experimental.Trace("train", step_num=n)``, which Keras sets too; without them, calls of the
    function that the training thread calls most.
    """
    marks = spans.filter(pl.col("step_num").is_not_null() & (pl.col("kind") == "annotation"))
    if not marks.is_empty():
        base = pl.col("name").str.replace(r"[ _#]*\d+$", "")
        counts = marks.group_by(base.alias("base")).agg(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum())
        train = counts.filter(pl.col("base").str.to_lowercase().str.contains("train"))
        chosen = (train if train.height else counts).sort("len", "end_ns", descending=True)["base"][0]
        return _columns(marks.filter(base == chosen), pl.col("step_num")), ""
    return _function_calls(spans)


def _function_calls(spans: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Calls of the function that took most time, each up to the next one: between them the loop gets its next batch.

    The last call has no end of this kind and is no step.
    """
    calls = spans.filter(pl.col("name").str.contains(_FUNCTION.pattern))
    counts = calls.group_by("name", "tid").agg(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"))
    repeated = counts.filter(pl.col("len") > 2).sort("time", "len", descending=True)
    if repeated.is_empty():
        return _columns(calls.clear(), pl.col("step_num")), ""
    name, tid = repeated["name"][0], repeated["tid"][0]
    mine = calls.filter((pl.col("name") == name) & (pl.col("tid") == tid)).sort("start_ns")
    mine = mine.with_columns(pl.col("start_ns").shift(-1).alias("end_ns")).drop_nulls("end_ns")
    shown = str(name).partition(": ")[2]
    note = f"no step marks (tf.profiler.experimental.Trace): each call of {shown} is taken as a step"
    return _columns(mine, pl.int_range(pl.len(), dtype=pl.Int64)), note


def _columns(marks: pl.DataFrame, number: pl.Expr) -> pl.DataFrame:
    return marks.select(number.alias("step"), "tid", "start_ns", "end_ns").sort("start_ns")
