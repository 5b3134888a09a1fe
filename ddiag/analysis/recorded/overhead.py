"""Garbage collection, saving, logging and compilation, as the step summaries add them up."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import PythonOverhead

_NS_PER_MS = 1e6
_GC_RANK_MS = 0.1
"""A rank with less collection per step is not named."""


def recorded_overhead(run: Run, windows: StepWindows) -> PythonOverhead | None:
    """Overheads of the worst rank; None without step summaries.

    Garbage collection over steady steps; logging and compilation over all judged steps but warm-up, since they are rare
    by design; saving over the whole run.
    """
    summaries = run.table("step_summaries")
    steps = windows.table.select("rank", "step", "steady").join(summaries, on=["rank", "step"])
    if steps.is_empty():
        return None
    after_warm_up = steps.filter(~pl.col("step").is_in(list(windows.warm_up)))
    collecting = _per_step(steps.filter("steady"), "gc_ns")
    saves = summaries.filter(pl.col("checkpoint_ns") > 0)
    return PythonOverhead(
        gc_ms_per_step=max(collecting.values(), default=0.0),
        gc_ranks=tuple(sorted(rank for rank, ms in collecting.items() if ms >= _GC_RANK_MS)),
        checkpoint_ms=_max_ms(saves, "checkpoint_ns"),
        logging_ms_per_step=max(_per_step(after_warm_up, "logging_ns").values(), default=0.0),
        compile_ms=_most_ms(after_warm_up, "compile_ns"),
        anomaly_mode=False,
        find_unused_ms=None,
        dataloader_workers=_workers(summaries),
        checkpoint_ms_per_step=max(_per_step(summaries, "checkpoint_ns").values(), default=0.0),
        checkpoint_share=_share(summaries, "checkpoint_ns"),
        checkpoints=max(saves.group_by("rank").len()["len"].to_list(), default=0),
    )


def _per_step(steps: pl.DataFrame, column: str) -> dict[int, float]:
    means = steps.group_by("rank").agg(pl.col(column).mean() / _NS_PER_MS).drop_nulls()
    return {int(rank): float(ms) for rank, ms in means.iter_rows()}


def _share(steps: pl.DataFrame, column: str) -> float:
    """Part of all step time, on the rank where it is largest."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    return max(
        steps.group_by("rank").agg((pl.col(column).sum() / length).alias("share"))["share"].to_list(), default=0.0
    )


def _most_ms(steps: pl.DataFrame, column: str) -> float:
    """Sum over the steps of the rank where it is largest."""
    sums = steps.group_by("rank").agg(pl.col(column).sum())[column].to_list()
    return max(sums, default=0) / _NS_PER_MS


def _max_ms(steps: pl.DataFrame, column: str) -> float:
    return max(steps[column].to_list(), default=0) / _NS_PER_MS


def _workers(summaries: pl.DataFrame) -> int | None:
    known = summaries["loader_workers"].drop_nulls()
    return max(known.to_list()) if len(known) else None
