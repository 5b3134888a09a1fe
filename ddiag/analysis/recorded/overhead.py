"""Garbage collection, saving, logging and compilation, as the step summaries add them up."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.steps import StepWindows
from ddiag.model.recorded import COMPILED_AGAIN
from ddiag.model.run import Run
from ddiag.model.signals import PythonOverhead

_NS_PER_MS = 1e6
_GC_RANK_MS = 0.1
"""A rank with less collection per step is not named."""
_LOGS_ALIKE = 0.5
"""Logging of a rank / most of any, from which it is named as well."""
_STEPS_TO_LEARN = 1
"""Steps after warm-up in which a function is compiled again in good order: the first shape that changes makes a graph
for all shapes, the first evaluation one (of every layer) for evaluation."""


def recorded_overhead(run: Run, windows: StepWindows) -> PythonOverhead | None:
    """Overheads of the worst rank; None without step summaries.

    Garbage collection over steady steps; logging and compilation over all judged steps but warm-up, since they are rare
    by design (and a first compilation is none to avoid); saving over the whole run.
    """
    summaries = run.table("step_summaries")
    steps = windows.table.select("rank", "step", "steady").join(summaries, on=["rank", "step"])
    if steps.is_empty():
        return None
    after_warm_up = steps.filter(~pl.col("step").is_in(list(windows.warm_up)))
    collecting, logging = _per_step(steps.filter("steady"), "gc_ns"), _per_step(after_warm_up, "logging_ns")
    logging_ms = max(logging.values(), default=0.0)
    saves = summaries.filter(pl.col("checkpoint_ns") > 0)
    compiled = _compiled_again(run, after_warm_up)
    return PythonOverhead(
        gc_ms_per_step=max(collecting.values(), default=0.0),
        gc_ranks=tuple(sorted(rank for rank, ms in collecting.items() if ms >= _GC_RANK_MS)),
        checkpoint_ms=_max_ms(saves, "checkpoint_ns"),
        logging_ms_per_step=logging_ms,
        logging_ranks=tuple(sorted(rank for rank, ms in logging.items() if ms and ms >= _LOGS_ALIKE * logging_ms)),
        compile_ms=sum(compiled.values()),
        anomaly_mode=False,
        find_unused_ms=None,
        dataloader_workers=_workers(summaries),
        checkpoint_ms_per_step=max(_per_step(summaries, "checkpoint_ns").values(), default=0.0),
        checkpoint_share=_share(summaries, "checkpoint_ns"),
        checkpoints=max(saves.group_by("rank").len()["len"].to_list(), default=0),
        compile_steps=after_warm_up["step"].n_unique(),
        compiled_again=tuple(compiled),
    )


def _compiled_again(run: Run, steps: pl.DataFrame) -> dict[str, float]:
    """Milliseconds by function on the rank where they are most, the dearest first."""
    again = run.table("phases").filter(
        (pl.col("phase") == "compile")
        & pl.col("label").str.starts_with(COMPILED_AGAIN)
        & pl.col("end_ns").is_not_null()
    )
    found = again.join(steps.select("rank", "step"), on=["rank", "step"], how="semi")
    took = ((pl.col("end_ns") - pl.col("start_ns")).sum() / _NS_PER_MS).alias("ms")
    found = found.group_by("rank", "label").agg(took, pl.col("step").n_unique())
    found = found.filter(pl.col("step") > _STEPS_TO_LEARN)
    if found.is_empty():
        return {}
    worst = found.group_by("rank").agg(pl.col("ms").sum()).sort("ms", "rank")["rank"][-1]
    rows = found.filter(pl.col("rank") == worst).sort("ms", "label", descending=[True, False])
    return {label.removeprefix(COMPILED_AGAIN): float(ms) for label, ms in rows.select("label", "ms").iter_rows()}


def _per_step(steps: pl.DataFrame, column: str) -> dict[int, float]:
    means = steps.group_by("rank").agg(pl.col(column).mean() / _NS_PER_MS).drop_nulls()
    return {int(rank): float(ms) for rank, ms in means.iter_rows()}


def _share(steps: pl.DataFrame, column: str) -> float:
    """Part of all step time, on the rank where it is largest."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    return max(
        steps.group_by("rank").agg((pl.col(column).sum() / length).alias("share"))["share"].to_list(), default=0.0
    )


def _max_ms(steps: pl.DataFrame, column: str) -> float:
    return max(steps[column].to_list(), default=0) / _NS_PER_MS


def _workers(summaries: pl.DataFrame) -> int | None:
    known = summaries["loader_workers"].drop_nulls()
    return max(known.to_list()) if len(known) else None
