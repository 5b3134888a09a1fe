"""Where training steps begin and end on the host, by the best evidence there is."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from ddiag.analysis.names import of_kind, outermost, where_name
from ddiag.analysis.step_inference import infer_steps, optimizer_ends
from ddiag.model.run import Run

_PROFILER_STEP = re.compile(r"^ProfilerStep[#*]?\s*(\d*)$")
_OWN_MARK = re.compile(
    r"^(?:train(?:ing)?[ _]?(?:step|batch|iteration|iter)|step|iteration|iter)(?:[ _#:=]*\d+)?$"
    r"|^\[pl\]\[profile\]run_training_batch$",
    re.IGNORECASE,
)
_PAUSE = 0.5
"""Steps further apart than this share of a median step are not consecutive (another profiler cycle)."""
_MICRO_BATCHES = 1.5
"""Marks per optimizer step from which they mark micro-batches."""


@dataclass(frozen=True)
class Marks:
    """Steps of every rank as its host saw them."""

    table: pl.DataFrame
    """rank, step, host_start_ns, host_end_ns, in time order per rank; a step ends where the next one begins."""
    source: str
    """annotation, inferred or window."""
    note: str


def find_marks(run: Run) -> Marks:
    """Annotated steps, else inferred ones, else one step per capture; the same kind for all ranks."""
    annotated = _profiler_steps(run)
    if not annotated.is_empty():
        return Marks(annotated, "annotation", "")
    own = _own_marks(run)
    if not own.is_empty():
        return Marks(own, "annotation", "steps from the program's own annotations")
    inferred, basis = infer_steps(run)
    if not inferred.is_empty():
        return Marks(inferred, "inferred", f"no step annotations: boundaries inferred from {basis}")
    return Marks(_captures(run), "window", "no step boundaries in the evidence: each capture is taken as one step")


def _profiler_steps(run: Run) -> pl.DataFrame:
    """ProfilerStep spans of host threads; a rank without any gives what its ``steps`` table says."""
    spans = _host_marks(run, _PROFILER_STEP)
    number = pl.col("name").cast(pl.String).str.extract(_PROFILER_STEP.pattern, 1).cast(pl.Int64, strict=False)
    spans = spans.select("rank", number.alias("step"), "start_ns", "end_ns")
    stated = run.table("steps").select("rank", "step", "start_ns", "end_ns")
    stated = stated.join(spans.select("rank").unique(), on="rank", how="anti")
    found = _one_per_moment(pl.concat([spans, stated]))
    if found["step"].null_count() or found.select("rank", "step").is_duplicated().any():
        found = _numbered(found)
    return _contiguous(found)


def _own_marks(run: Run) -> pl.DataFrame:
    """Annotations such as ``train_step 12`` that every rank repeats; not where they mark micro-batches of an update."""
    spans = _one_per_moment(_host_marks(run, _OWN_MARK).select("rank", "start_ns", "end_ns"))
    counts = spans.group_by("rank").len()
    ranks = run.table("captures")["rank"].n_unique()
    updates = optimizer_ends(run).height
    micro_batches = updates >= 2 * ranks and spans.height >= _MICRO_BATCHES * updates
    if counts.height < ranks or counts.filter(pl.col("len") < 2).height or micro_batches:
        spans = spans.clear()
    return _contiguous(_numbered(spans))


def _host_marks(run: Run, pattern: re.Pattern[str]) -> pl.DataFrame:
    """Spans of host threads by name: never the copies that Kineto draws on the device timeline."""
    spans = where_name(of_kind(run.table("ops"), "op", "annotation"), lambda name: pattern.match(name) is not None)
    return spans.filter(pl.col("end_ns") > pl.col("start_ns"))


def _one_per_moment(spans: pl.DataFrame) -> pl.DataFrame:
    """Drop marks that lie inside another one, whichever thread they are on."""
    on_one_thread = spans.with_columns(pl.lit(0, dtype=pl.Int64).alias("tid"))
    return outermost(on_one_thread).drop("tid").sort(["rank", "start_ns"])


def _numbered(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).over("rank").alias("step"))


def _contiguous(spans: pl.DataFrame) -> pl.DataFrame:
    """Let each step end where the next one begins, unless a pause lies between them."""
    following = pl.col("start_ns").shift(-1).over("rank")
    typical = (pl.col("end_ns") - pl.col("start_ns")).median().over("rank")
    chained = following.is_not_null() & (following - pl.col("end_ns") <= _PAUSE * typical)
    return spans.select(
        "rank",
        "step",
        pl.col("start_ns").alias("host_start_ns"),
        pl.when(chained).then(following).otherwise(pl.col("end_ns")).alias("host_end_ns"),
    )


def _captures(run: Run) -> pl.DataFrame:
    """One step per capture: from its first to its last record."""
    found = run.table("captures").filter(pl.col("end_ns") > pl.col("start_ns"))
    return found.select(
        "rank",
        pl.col("capture").cast(pl.Int64).alias("step"),
        pl.col("start_ns").alias("host_start_ns"),
        pl.col("end_ns").alias("host_end_ns"),
    ).sort(["rank", "host_start_ns"])
