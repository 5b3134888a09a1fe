"""Activation checkpointing: forward operators that run again inside backward, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.device_work import device_work
from ddiag.analysis.names import of_kind, outermost, where_name
from ddiag.analysis.op_names import is_autograd_node, is_checkpoint_node, is_forward_only
from ddiag.analysis.op_tree import call_tree
from ddiag.analysis.steady_work import NS_PER_MS, busy_ns, in_steady, launched_in, mean_step_ms, step_count
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Memory, Recompute


def recompute(
    run: Run, windows: StepWindows, acts: Mapping[int, RankActivity], memory: Memory | None
) -> Recompute | None:
    """Compute time per step of the repeated forward; None when nothing of the kind is visible.

    Recompute compiled into one graph (torch.compile) leaves no operators and cannot be seen.
    """
    repeated = repeated_forward(run)
    if repeated.is_empty() or not step_count(windows):
        return None
    on_device = any(act.on_device for act in acts.values())
    cost = _device_cost(run, windows, repeated) if on_device else in_steady(outermost(repeated), windows, host=True)
    ms = busy_ns(cost) / step_count(windows) / NS_PER_MS
    if ms <= 0:
        return None
    step_ms = mean_step_ms(windows)
    return Recompute(
        ms_per_step=ms,
        share=ms / step_ms if step_ms > 0 else 0.0,
        detected_by=_describe(run, repeated),
        memory_share=memory.peak_share if memory is not None else None,
    )


def repeated_forward(run: Run) -> pl.DataFrame:
    """Outermost forward operators that ran inside backward (rank, tid, name, start_ns, end_ns, node).

    Backward runs without gradients, so that an operator with a new autograd sequence number inside a backward node is
    part of a graph built there: forward done again, or a second derivative (``create_graph=True``). The two are told
    apart by operators that no derivative formula calls, such as ``aten::linear`` and ``aten::conv2d``.
    """
    ops = of_kind(run.table("ops"), "op")
    nodes = where_name(ops, is_autograd_node)
    if nodes.is_empty():
        return _none()
    new = ops.filter((pl.col("sequence") >= 0) & (pl.col("fwd_tid") <= 0))
    tree = call_tree(pl.concat([nodes.with_columns(_node=True), new.with_columns(_node=False)]))
    named = tree.with_columns(pl.col("name").cast(pl.String))
    parents = named.select(pl.col("row").alias("parent"), pl.col("name").alias("node"), _in_node="_node")
    direct = named.filter(~pl.col("_node")).join(parents, on="parent", how="inner").filter("_in_node")
    return _only_repeats(direct)


def _only_repeats(direct: pl.DataFrame) -> pl.DataFrame:
    """Operators of those backward nodes that hold a forward-only operator or are a checkpoint's own node."""
    if direct.is_empty():
        return _none()
    sure = where_name(direct, is_forward_only)["parent"]
    own = where_name(direct, is_checkpoint_node, column="node")["parent"]
    chosen = pl.concat([sure, own]).unique().to_list()
    return direct.filter(pl.col("parent").is_in(chosen)).select("rank", "tid", "name", "start_ns", "end_ns", "node")


def _none() -> pl.DataFrame:
    return pl.DataFrame(
        schema={
            "rank": pl.Int32,
            "tid": pl.Int64,
            "name": pl.String,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "node": pl.String,
        }
    )


def _device_cost(run: Run, windows: StepWindows, repeated: pl.DataFrame) -> pl.DataFrame:
    work = device_work(run).filter(pl.col("kind") == "compute")
    return in_steady(launched_in(work, repeated), windows)


def _describe(run: Run, repeated: pl.DataFrame) -> str:
    node = where_name(repeated, is_checkpoint_node, column="node")
    if not node.is_empty():
        return f"{str(node['node'][0]).rsplit(' ', 1)[-1]} runs forward operators (reentrant checkpoint)"
    frames = where_name(of_kind(run.table("ops"), "python"), lambda name: "torch/utils/checkpoint.py" in name)
    seen = " and torch/utils/checkpoint.py on the Python stack" if not frames.is_empty() else ""
    example = where_name(repeated, is_forward_only)["name"].mode().sort()[0]
    return f"forward operators such as {example} run inside backward{seen}"
