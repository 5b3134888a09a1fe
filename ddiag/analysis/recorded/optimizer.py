"""The parameter update as the recorder saw it, and offloaded updates and copies."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.intervals import Intervals, total
from ddiag.analysis.names import spans_union
from ddiag.analysis.per_step import host_windows, mean_step_ms, ms_per_step, ranks_with_steps
from ddiag.analysis.rank_rows import rows_of
from ddiag.analysis.recorded.marks import in_phase
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Copies, OptimizerStep


def recorded_optimizer(run: Run, windows: StepWindows) -> OptimizerStep | None:
    """Host time of the update and the updates that were skipped; None when no optimizer stepped in steady steps."""
    ranks = ranks_with_steps(windows)
    ms = [ms_per_step(in_phase(run, rank, "optimizer"), host_windows(windows, rank)) for rank in ranks]
    steps = windows.steady.select("rank", "step").join(run.table("step_summaries"), on=["rank", "step"])
    if not ranks or not (max(ms) or steps["skipped"].any()):
        return None
    mean_ms, step_ms = sum(ms) / len(ms), sum(mean_step_ms(windows, rank) for rank in ranks) / len(ranks)
    return OptimizerStep(
        name=_name(run),
        implementation="cpu" if any(len(in_phase(run, rank, "cpu_optimizer")) for rank in ranks) else "unknown",
        ms_per_step=mean_ms,
        host_ms_per_step=mean_ms,
        kernels_per_step=0.0,
        share=mean_ms / step_ms if step_ms > 0 else 0.0,
        skipped_steps=_most(steps, "skipped"),
        clipped_scaled_steps=_most(steps, "clipped_scaled"),
    )


def _name(run: Run) -> str:
    """The optimizer's class, where an engine told it."""
    config = run.table("config")
    found = config.filter(pl.col("key") == "deepspeed.inner_optimizer")["value"].to_list()
    return str(found[0]) if found else ""


def _most(steps: pl.DataFrame, flag: str) -> int:
    """Steps with *flag* on the rank that has most of them."""
    return max(steps.filter(pl.col(flag)).group_by("rank").len()["len"].to_list(), default=0)


def recorded_copies(run: Run, windows: StepWindows) -> Copies | None:
    """Offloading as its own marks show it; None where nothing is offloaded.

    No rates: the host's time in a copy may hold the cast before it or, of pinned memory, nothing but the request.
    """
    ranks = ranks_with_steps(windows)
    updates = {rank: in_phase(run, rank, "cpu_optimizer") for rank in ranks}
    rows = run.table("copies")
    if rows.is_empty() and not any(len(spans) for spans in updates.values()):
        return None
    steps = sum(windows.steady_of[rank].height for rank in ranks)
    inside = pl.concat([_inside(run, windows, rank) for rank in ranks]) if ranks else rows.clear()
    step_ms = sum(mean_step_ms(windows, rank) for rank in ranks) / max(len(ranks), 1)
    sides = {side: inside.filter(pl.col("direction") == side) for side in ("h2d", "d2h")}
    copying = {side: _busy_ms(part) / max(steps, 1) for side, part in sides.items()}
    per_rank = [ms_per_step(updates[rank], host_windows(windows, rank)) for rank in ranks]
    exposed = _busy_ms(inside) / max(steps, 1)
    return Copies(
        table=_table(sides, copying, steps),
        h2d_gbps=None,
        d2h_gbps=None,
        pageable_share=None,
        pageable_exposed_ms=0.0,
        exposed_ms=exposed,
        link_busy_share=max(copying.values()) / step_ms if step_ms > 0 else 0.0,
        bytes_per_step=round(int(inside["bytes"].sum() or 0) / max(steps, 1)),
        offload="optimizer" if any(len(spans) for spans in updates.values()) else "unknown",
        offload_exposed_ms=exposed,
        cpu_optimizer_ms=max(per_rank, default=0.0),
    )


def _inside(run: Run, windows: StepWindows, rank: int) -> pl.DataFrame:
    """Copies of *rank* that began in a steady step."""
    mine = rows_of(run, "copies", rank).sort("start_ns")
    steps = windows.steady_of[rank].select(begin="host_start_ns", finish="host_end_ns").sort("begin")
    owned = mine.join_asof(steps, left_on="start_ns", right_on="begin")
    return owned.filter(pl.col("start_ns") < pl.col("finish")).drop("begin", "finish")


def _busy_ms(rows: pl.DataFrame) -> float:
    return sum(total(_union(mine)) for _, mine in rows.group_by("rank")) / 1e6


def _union(rows: pl.DataFrame) -> Intervals:
    return spans_union(rows)


def _table(sides: dict[str, pl.DataFrame], copying: dict[str, float], steps: int) -> pl.DataFrame:
    rows = [
        {
            "direction": side,
            "pinned": None,
            "count_per_step": part.height / max(steps, 1),
            "bytes_per_step": round(int(part["bytes"].sum() or 0) / max(steps, 1)),
            "ms_per_step": copying[side],
            "gbps": None,
            "exposed_ms": copying[side],
        }
        for side, part in sides.items()
        if part.height
    ]
    schema = {
        "direction": pl.String, "pinned": pl.Boolean, "count_per_step": pl.Float64, "bytes_per_step": pl.Int64,
        "ms_per_step": pl.Float64, "gbps": pl.Float64, "exposed_ms": pl.Float64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema)
