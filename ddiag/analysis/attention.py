"""How attention runs: in one fused kernel, or spelled out as matmul, softmax, matmul."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import polars as pl

from ddiag.analysis.device_work import device_work
from ddiag.analysis.names import of_kind, outermost, where_name
from ddiag.analysis.op_names import attention_part, is_autograd_node, is_fused_attention, is_math_attention
from ddiag.analysis.steady_work import (
    NS_PER_MS,
    busy_ns,
    in_steady,
    inside,
    labelled,
    launched_in,
    mean_step_ms,
    step_count,
)
from ddiag.analysis.steps import StepWindows
from ddiag.model.naming import function_name, kernel_class
from ddiag.model.run import Run
from ddiag.model.signals import Attention, StepBudget

_NEAR = 60
"""Operators that may lie between the matmuls of one attention and its softmax (scale, mask, cast, dropout, nested)."""
_SCORE_DIMS = 3
"""Attention scores have at least this many dimensions; a classifier's softmax has two."""

_NOT_A_CALL = re.compile(r"backward|bwd|reduce|combine|merge|preprocess|postprocess|convert", re.IGNORECASE)


@dataclass(frozen=True)
class _Calls:
    """Forward calls on host threads: rank, tid, name, start_ns, end_ns."""

    fused: pl.DataFrame
    math: pl.DataFrame
    by_hand: pl.DataFrame

    @property
    def unfused(self) -> pl.DataFrame:
        return pl.concat([self.math, self.by_hand])


_SPAN = ["rank", "tid", "name", "start_ns", "end_ns"]


def attention(run: Run, windows: StepWindows, budget: StepBudget | None) -> Attention | None:
    """Cost of fused and unfused attention in steady steps; None when no attention is visible.

    Unfused cost includes the backward operators that belong to its forward ones (same autograd sequence number).
    Attention inside compiled or captured graphs shows only as a fused kernel, if it is one.
    """
    steps = step_count(windows)
    ops = of_kind(run.table("ops"), "op")
    calls = _calls(ops)
    unfused = pl.concat([calls.unfused, _backward_of(ops, calls.unfused)])
    if run.has("kernels"):
        work = device_work(run).filter(pl.col("kind") == "compute")
        fused_cost, unfused_cost = _fused_kernels(work, calls, windows), in_steady(launched_in(work, unfused), windows)
    else:
        fused_cost = in_steady(calls.fused, windows, host=True)
        unfused_cost = in_steady(outermost(unfused), windows, host=True)
    if not steps or (fused_cost.is_empty() and unfused_cost.is_empty()):
        return None
    unfused_ms = busy_ns(unfused_cost) / steps / NS_PER_MS
    step_ms = budget.step_ms if budget is not None else mean_step_ms(windows)
    return Attention(
        fused_ms=busy_ns(fused_cost) / steps / NS_PER_MS,
        unfused_ms=unfused_ms,
        unfused_share=unfused_ms / step_ms if step_ms > 0 else 0.0,
        evidence=_evidence(calls, fused_cost),
        calls_per_step=_count(calls, fused_cost, windows) / steps,
    )


def _calls(ops: pl.DataFrame) -> _Calls:
    math = outermost(where_name(ops, is_math_attention)).select(_SPAN)
    fused = outermost(where_name(ops, is_fused_attention)).select(_SPAN)
    return _Calls(fused, math, _outside(_by_hand(ops), pl.concat([math, fused])))


def _outside(spans: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    if others.is_empty():
        return spans
    return spans.join(inside(spans, others), on=_SPAN, how="anti")


def _by_hand(ops: pl.DataFrame) -> pl.DataFrame:
    """From the first matmul to the second of each batched matmul, softmax, batched matmul on one thread.

    A projection or convolution between them means that they are not one attention, as does a softmax over a matrix.
    """
    numbered = ops.sort("start_ns").with_columns(pl.int_range(pl.len()).over("rank", "tid").alias("_nth"))
    parts = where_name(numbered, lambda name: attention_part(name) is not None)
    parts = labelled(outermost(parts), attention_part, "part")
    parts = labelled(parts, _few_dims, "_flat", column="dims")
    before, after = pl.col("part").shift(1).over("rank", "tid"), pl.col("part").shift(-1).over("rank", "tid")
    nth_before, nth_after = pl.col("_nth").shift(1).over("rank", "tid"), pl.col("_nth").shift(-1).over("rank", "tid")
    parts = parts.with_columns(
        pl.col("start_ns").shift(1).over("rank", "tid").alias("_first"),
        pl.col("end_ns").shift(-1).over("rank", "tid").alias("_last"),
        ((before == "bmm") & (after == "bmm")).alias("_between"),
        ((pl.col("_nth") - nth_before <= _NEAR) & (nth_after - pl.col("_nth") <= _NEAR)).alias("_near"),
    )
    found = parts.filter(
        (pl.col("part") == "softmax") & pl.col("_between") & pl.col("_near") & pl.col("_flat").is_null()
    )
    return found.select("rank", "tid", "name", pl.col("_first").alias("start_ns"), pl.col("_last").alias("end_ns"))


def _few_dims(dims: str) -> str | None:
    """'flat' when the first input of an operator is a matrix or less (``[[8, 10], [], …]``)."""
    first = next((shape for shape in json.loads(dims) if isinstance(shape, list) and shape), [])
    return "flat" if 0 < len(first) < _SCORE_DIMS else None


def _backward_of(ops: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Backward nodes of the operators inside *forward*, by autograd sequence number."""
    sequences = inside(ops.filter((pl.col("sequence") >= 0) & (pl.col("fwd_tid") <= 0)), forward)
    nodes = where_name(ops.filter(pl.col("fwd_tid") > 0), is_autograd_node)
    wanted = sequences.select("rank", "sequence").unique()
    return nodes.join(wanted, on=["rank", "sequence"], how="semi").select(_SPAN)


def _fused_kernels(work: pl.DataFrame, calls: _Calls, windows: StepWindows) -> pl.DataFrame:
    """Kernels that are attention by name, and those launched by a fused operator."""
    named = labelled(work, kernel_class, "_class").filter(pl.col("_class") == "attention")
    both = pl.concat([named.drop("_class"), launched_in(work, calls.fused)])
    return in_steady(both.unique(["rank", "start_ns", "end_ns", "stream", "name"]), windows)


def _is_forward(name: str) -> bool:
    """One per call: neither backward nor a second kernel that combines partial results."""
    return _NOT_A_CALL.search(name) is None


def _count(calls: _Calls, fused_cost: pl.DataFrame, windows: StepWindows) -> int:
    """Forward calls in steady steps; where fused operators were not recorded, forward kernels."""
    fused = in_steady(where_name(calls.fused, _is_forward), windows, host=True).height
    kernels = labelled(fused_cost, function_name, "_function")
    kernels = where_name(kernels, _is_forward, column="_function")
    return in_steady(calls.unfused, windows, host=True).height + (fused or kernels.height)


def _evidence(calls: _Calls, fused_cost: pl.DataFrame) -> str:
    if calls.math.height:
        return str(calls.math["name"][0])
    if calls.by_hand.height:
        return f"aten::bmm, {calls.by_hand['name'][0]} and aten::bmm in a row"
    return str(calls.fused["name"][0]) if calls.fused.height else function_name(fused_cost["name"].mode().sort()[0])
