"""Where the host ran the optimizer: ``Optimizer.step``, ``zero_grad``, and which updates stayed on the CPU."""

from __future__ import annotations

import re

import polars as pl

from ddiag.analysis.names import of_kind, outermost, where_name
from ddiag.analysis.steady_work import launched_in
from ddiag.model.run import Run

_STEP = re.compile(r"^Optimizer\.step#(.+?)(?:\.step)?$")
_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_ON_CPU = re.compile(r"cpu_?adam|CPUAdam|cpu_?adagrad|cpu_?lion|Hybrid(?:Device)?Optimizer", re.IGNORECASE)


def optimizer_spans(run: Run) -> pl.DataFrame:
    """Outermost spans of ``Optimizer.step`` on host threads, with the optimizer's class name in ``optimizer``."""
    spans = outermost(_named(run, _STEP))
    return spans.with_columns(pl.col("name").cast(pl.String).str.extract(_STEP.pattern, 1).alias("optimizer"))


def zero_grad_spans(run: Run) -> pl.DataFrame:
    """Outermost spans of ``Optimizer.zero_grad``."""
    return outermost(_named(run, _ZERO_GRAD))


def _named(run: Run, pattern: re.Pattern[str]) -> pl.DataFrame:
    return where_name(
        run.table("ops").filter(pl.col("kind") != "gpu_annotation"), lambda name: pattern.match(name) is not None
    )


def cpu_optimizer_spans(run: Run, work: pl.DataFrame) -> pl.DataFrame:
    """Spans in which the parameters of a rank with a device were updated on the host.

    Either the optimizer says so (CPUAdam), or operators ran inside although no compute kernel was launched from there.
    *work* is :func:`~ddiag.analysis.device_work.device_work`.
    """
    compute = work.filter(pl.col("kind") == "compute")
    spans = optimizer_spans(run).filter(pl.col("rank").is_in(compute["rank"].unique().to_list()))
    said = pl.col("optimizer").str.contains(_ON_CPU.pattern)
    if compute["launch_start_ns"].null_count() == compute.height:
        return spans.filter(said)
    spans = spans.with_row_index("_span")
    launched = _owners(launched_in(compute, spans), spans, "launch_start_ns", "launch_tid")
    operators = _owners(of_kind(run.table("ops"), "op"), spans, "start_ns", "tid")
    computed = pl.col("_span").is_in(operators) & ~pl.col("_span").is_in(launched)
    return spans.filter(said | computed).drop("_span")


def _owners(rows: pl.DataFrame, spans: pl.DataFrame, at: str, tid: str) -> list[int]:
    """Ids of the spans in which at least one of *rows* began."""
    keys = spans.select(
        "rank", pl.col("tid").alias(tid), pl.col("start_ns").alias("_begin"), pl.col("end_ns").alias("_end"), "_span"
    )
    found = (
        rows.select("rank", tid, pl.col(at).alias("_at"))
        .sort("_at")
        .join_asof(
            keys.sort("_begin"),
            left_on="_at",
            right_on="_begin",
            by=["rank", tid],
            check_sortedness=False,
            coalesce=False,
        )
    )
    return found.filter(pl.col("_at") < pl.col("_end"))["_span"].unique().to_list()
