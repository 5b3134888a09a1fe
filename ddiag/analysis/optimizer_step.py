"""The parameter update: how it is implemented, what it costs, and whether the gradient scaler skipped it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.device_work import device_work
from ddiag.analysis.intervals import intersect, total
from ddiag.analysis.names import of_kind, spans_union, where_name
from ddiag.analysis.optimizer_spans import cpu_optimizer_spans, optimizer_spans, zero_grad_spans
from ddiag.analysis.steady_work import (
    NS_PER_MS,
    busy_ns,
    in_steady,
    inside,
    labelled,
    launched_in,
    mean_step_ms,
    step_count,
    summed_ns,
)
from ddiag.analysis.steps import StepWindows
from ddiag.model.naming import kernel_class
from ddiag.model.run import Run
from ddiag.model.signals import OptimizerStep

_MULTI_TENSOR = re.compile(r"multi_tensor_apply")
_COMPILED = re.compile(r"^triton_for_")
_FUNCTOR = re.compile(r"(Adam|SGD|Sgd|Adagrad|LAMB|Lamb|Lion|NovoGrad)\w*")
_SCALER_CHECK = re.compile(r"_amp_(?:foreach_)?non_finite_check_and_unscale")
_FUSED_OP = re.compile(r"^aten::_fused_(?:adam|adamw|sgd|adagrad)_?")
_FOREACH_OP = re.compile(r"^aten::_foreach_")
_MOSTLY = 0.5
"""The implementation that owns at least this share of the update's time names it."""


@dataclass(frozen=True)
class _Evidence:
    """What there is to see of the update in steady steps."""

    spans: pl.DataFrame
    """Optimizer.step on the host."""
    kernels: pl.DataFrame
    """Compute kernels of the update, with ``how``: fused, foreach or plain."""
    on_cpu: pl.DataFrame
    """Those of ``spans`` in which the host computed although there is a device."""


def optimizer_step(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> OptimizerStep | None:
    """The update of steady steps; None when neither an optimizer nor a gradient scaler is visible."""
    steps = step_count(windows)
    work = device_work(run)
    seen = _evidence(run, windows, work)
    checks = in_steady(_scaler_checks(run), windows, host=True)
    if not steps or (seen.spans.is_empty() and seen.kernels.is_empty() and checks.is_empty()):
        return None
    on_device = any(act.on_device for act in acts.values())
    host_ms = busy_ns(seen.spans) / steps / NS_PER_MS
    implementation = _implementation(seen) if on_device else _host_implementation(run, seen.spans)
    on_host = not on_device or implementation == "cpu"
    ms = host_ms if on_host else busy_ns(seen.kernels) / steps / NS_PER_MS
    step_ms = mean_step_ms(windows)
    zeroing = in_steady(launched_in(work.filter(pl.col("kind") != "communication"), zero_grad_spans(run)), windows)
    return OptimizerStep(
        name=_name(seen),
        implementation=implementation,
        ms_per_step=ms,
        host_ms_per_step=host_ms,
        kernels_per_step=seen.kernels.height / steps,
        share=ms / step_ms if step_ms > 0 else 0.0,
        zero_grad_kernels_per_step=zeroing.height / steps,
        steps_per_optimizer_step=_accumulation(seen.spans, checks, windows),
        skipped_steps=_skipped(checks, seen.spans),
        scaler_checks_per_step=checks.height / steps,
        starved_ms=_starved_ms(seen.spans, acts, steps) if on_device else None,
    )


def _starved_ms(spans: pl.DataFrame, acts: Mapping[int, RankActivity], steps: int) -> float:
    """Device idle that waited for the host's launches while the host was inside *spans*, per step.

    Host time in the optimizer alone costs nothing: the device often still works off what was launched before.
    """
    idle = {rank: act.idle.host for rank, act in acts.items() if act.idle is not None}
    starved = sum(
        total(intersect(idle[rank], spans_union(group)))
        for (rank,), group in spans.group_by("rank")
        if isinstance(rank, int) and rank in idle
    )
    return starved / steps / NS_PER_MS


def _evidence(run: Run, windows: StepWindows, work: pl.DataFrame) -> _Evidence:
    """Kernels are those launched inside Optimizer.step; without such spans, those whose functor names an optimizer."""
    spans = optimizer_spans(run)
    compute = work.filter(pl.col("kind") == "compute")
    kernels = in_steady(launched_in(compute, spans) if spans.height else compute, windows)
    kernels = labelled(kernels, _how, "how")
    if spans.is_empty():
        kernels = labelled(kernels, kernel_class, "_class").filter(pl.col("_class") == "optimizer").drop("_class")
    on_cpu = in_steady(cpu_optimizer_spans(run, work), windows, host=True)
    return _Evidence(in_steady(spans, windows, host=True), kernels, on_cpu)


def _how(kernel_name: str) -> str:
    if kernel_class(kernel_name) == "optimizer" or _COMPILED.match(kernel_name):
        return "fused"
    return "foreach" if _MULTI_TENSOR.search(kernel_name) else "plain"


def _implementation(seen: _Evidence) -> str:
    """fused, foreach, for_loop or cpu, by what most of the update's time is spent in."""
    if busy_ns(seen.on_cpu) > _MOSTLY * busy_ns(seen.spans):
        return "cpu"
    total = summed_ns(seen.kernels)
    if not total:
        return "unknown"
    fused = summed_ns(seen.kernels.filter(pl.col("how") == "fused"))
    multi = summed_ns(seen.kernels.filter(pl.col("how") == "foreach"))
    if fused >= _MOSTLY * total:
        return "fused"
    return "foreach" if fused + multi >= _MOSTLY * total else "for_loop"


def _host_implementation(run: Run, spans: pl.DataFrame) -> str:
    """Without a device: by the operators inside the optimizer's spans."""
    ops = inside(of_kind(run.table("ops"), "op"), spans)
    if ops.is_empty():
        return "unknown"
    fused = where_name(ops, lambda name: _FUSED_OP.match(name) is not None)
    if fused.height or spans["optimizer"].str.starts_with("Fused").any():
        return "fused"
    foreach = where_name(ops, lambda name: _FOREACH_OP.match(name) is not None)
    return "foreach" if foreach.height else "for_loop"


def _name(seen: _Evidence) -> str:
    """Class of the optimizer that takes most time; by the kernels' functor when no span tells; else ''."""
    if seen.spans.height:
        length = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
        return str(seen.spans.group_by("optimizer").agg(length).sort("ns", "optimizer", descending=[True, False])[0, 0])
    found = (_FUNCTOR.search(name) for name in seen.kernels["name"].unique().to_list())
    return min((match.group(1) for match in found if match is not None), default="")


def _accumulation(spans: pl.DataFrame, checks: pl.DataFrame, windows: StepWindows) -> float:
    """Steps from one update, done or skipped by the scaler, to the next: median; 1.0 when fewer than two were seen."""
    updated = pl.concat([spans.select("rank", "step"), checks.select("rank", "step")]).unique()
    steps = windows.steady.sort("rank", "host_start_ns").select("rank", "step")
    numbered = steps.with_columns(pl.int_range(pl.len()).over("rank").alias("_nth"))
    nth = numbered.join(updated, on=["rank", "step"], how="inner", maintain_order="left")
    gaps = nth.select(pl.col("_nth").diff().over("rank")).to_series().drop_nulls()
    return float(median(gaps.to_list())) if gaps.len() else 1.0


def _scaler_checks(run: Run) -> pl.DataFrame:
    return where_name(of_kind(run.table("ops"), "op"), lambda name: _SCALER_CHECK.search(name) is not None)


def _skipped(checks: pl.DataFrame, spans: pl.DataFrame) -> int:
    """Steps in which gradients were checked and no optimizer stepped, on the rank with most of them.

    An optimizer that is handed ``found_inf`` (fused=True) skips inside its kernel, which a trace does not show.
    """
    updated = spans.select("rank", "step").unique()
    missing = checks.select("rank", "step").unique().join(updated, on=["rank", "step"], how="anti")
    return max(missing.group_by("rank").len()["len"].to_list(), default=0)
