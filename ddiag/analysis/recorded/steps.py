"""Steps of a recording: those whose details the rings still hold are judged in detail."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.steady import judge
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run

_WITHOUT_DETAILS = 50
"""Steps looked at, the last ones, when the rings hold no whole step."""
_MINORITY = 0.5
"""Share of the steps up to which steps with evaluation, a checkpoint … do not stand for the run."""
_UNUSUAL = (
    ("profiled", "torch.profiler ran in them"),
    ("evaluated", "evaluation ran in them"),
    ("saved", "a checkpoint was written in them"),
    ("compiled", "something was compiled in them"),
)


def recorded_windows(run: Run) -> StepWindows:
    """Windows of the steps that can be judged; the host's, since the recorder saw no device."""
    steps, notes = _judgeable(run)
    host = steps.select(
        "rank", "step", host_start_ns="start_ns", host_end_ns="end_ns", start_ns="start_ns", end_ns="end_ns"
    ).sort("rank", "host_start_ns")
    judged = judge(run, host)
    table, left_out = _without_unusual(run, judged.table)
    table, unseen = _without_unseen(run, table)
    excluded = sorted(set(table["step"]) - set(table.filter("steady")["step"]))
    source = "recorded" if run.has("steps") else "window"
    return StepWindows(
        table, source, "; ".join([*notes, *judged.notes, *left_out, *unseen]), tuple(excluded), judged.warm_up
    )


def _judgeable(run: Run) -> tuple[pl.DataFrame, list[str]]:
    """The steps that lie wholly in what is left of the rings."""
    captures = run.table("captures")
    if not run.has("steps"):
        whole = captures.with_columns(pl.lit(0, dtype=pl.Int64).alias("step"))
        return whole, ["no step has ended yet: all that was recorded is taken as one"]
    begins = captures.select("rank", pl.col("start_ns").alias("begin"))
    steps = run.table("steps").join(begins, on="rank", how="left")
    kept = steps.filter(pl.col("start_ns") >= pl.col("begin"))
    total, seen = steps["step"].n_unique(), kept["step"].n_unique()
    if kept.is_empty():
        last = pl.col("step") > pl.col("step").max().over("rank") - _WITHOUT_DETAILS
        return steps.filter(last), ["the rings hold no whole step: only step summaries are known"]
    if seen < total:
        return kept, [f"the newest {seen:,} of {total:,} steps are judged in detail, all by their summaries"]
    return kept, []


def _without_unusual(run: Run, table: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Steps in which something rare happened on any rank are not steady, unless most are like that."""
    flags = run.table("step_summaries").select("rank", "step", *(name for name, _ in _UNUSUAL))
    table = table.with_row_index("_at").join(flags, on=["rank", "step"], how="left", maintain_order="left")
    notes = []
    for name, meaning in _UNUSUAL:
        found = table.filter(pl.col("steady") & pl.col(name).fill_null(value=False))["step"].unique()
        steady = table.filter("steady")["step"].n_unique()
        if not len(found) or len(found) > _MINORITY * steady or len(found) == steady:
            continue
        table = table.with_columns(steady=pl.col("steady") & ~pl.col("step").is_in(found.to_list()))
        notes.append(f"{len(found)} step(s) left out: {meaning}")
    return table.drop("_at", *(name for name, _ in _UNUSUAL)), notes


def _without_unseen(run: Run, table: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Where only some steps' communication was recorded, or seen to end, the others say nothing about it."""
    calls = run.table("collectives")
    if calls.is_empty() or not calls["sampled"].fill_null(value=False).any():
        return table, []
    followed = calls.filter(pl.col("end_ns").is_not_null()).select("rank", pl.col("start_ns").alias("at")).sort("at")
    steps = table.select("rank", "step", "start_ns", "end_ns").sort("start_ns")
    owners = followed.join_asof(steps, left_on="at", right_on="start_ns", by="rank", check_sortedness=False)
    seen = owners.filter(pl.col("at") < pl.col("end_ns"))["step"].unique().to_list()
    steady = table.with_columns(steady=pl.col("steady") & pl.col("step").is_in(seen))
    if not steady["steady"].any():
        return table, []
    return steady, [f"communication was followed in {len(seen)} steps: the others are left out"]
