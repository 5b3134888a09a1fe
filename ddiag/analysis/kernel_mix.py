"""What the device computes: kernels by class, the costliest ones, and ranks whose same kernels take longer."""

from __future__ import annotations

import polars as pl

from ddiag.analysis.device_work import device_work
from ddiag.analysis.host_names import is_loader
from ddiag.analysis.names import of_kind, where_name
from ddiag.analysis.op_names import op_class
from ddiag.analysis.op_tree import call_tree, self_ns
from ddiag.analysis.optimizer_spans import optimizer_spans
from ddiag.analysis.steady_work import NS_PER_MS, in_steady, inside, labelled, launched_in, step_count
from ddiag.analysis.steps import StepWindows
from ddiag.model.naming import collective_op, kernel_class
from ddiag.model.run import Run
from ddiag.model.signals import KernelMix

_TINY_NS = 10_000
_TOP = 30
_SAME_COUNT = 0.1
"""Kernels are compared between ranks that run them equally often, give or take this share."""
_TIMEABLE_NS = 5_000
"""Shorter kernels differ by the resolution of the clock."""
_ENOUGH_KERNELS = 3
"""Fewer kernels cannot tell a slow device from more work."""


def kernel_mix(run: Run, windows: StepWindows) -> KernelMix | None:
    """Kernels of steady steps by class; on a host-only trace CPU operators by their own time. None without either.

    What runs or is launched inside ``Optimizer.step`` is the optimizer's whatever it computes. Times are summed
    durations.
    """
    on_device = run.has("kernels")
    rows = _device_rows(run, windows) if on_device else _host_rows(run, windows)
    if rows.is_empty() or not rows["ns"].sum():
        return None
    steps = step_count(windows)
    table = _by(rows, ["kernel_class"], steps)
    compute = rows.filter(pl.col("kernel_class") != "communication")
    elementwise = compute.filter(pl.col("kernel_class") == "elementwise")
    fused = where_name(elementwise, lambda name: name.startswith("triton_"))
    total = int(compute["ns"].sum())
    return KernelMix(
        table=table,
        top=_by(rows, ["name", "kernel_class"], steps).head(_TOP),
        compute_ms=total / steps / NS_PER_MS,
        elementwise_share=_share(elementwise, total),
        tiny_share=compute.filter(pl.col("ns") < _TINY_NS).height / max(compute.height, 1) if on_device else 0.0,
        per_rank=_per_rank(compute, windows) if on_device else None,
        fused_elementwise_share=_share(fused, total),
        on_device=on_device,
    )


def _device_rows(run: Run, windows: StepWindows) -> pl.DataFrame:
    """rank, name, kernel_class and ns of each kernel."""
    kernels = in_steady(device_work(run).filter(pl.col("kind") != "copy"), windows).with_row_index("_row")
    kernels = labelled(kernels, kernel_class, "kernel_class")
    updating = launched_in(kernels, optimizer_spans(run))["_row"].to_list()
    compute = pl.col("kind") == "compute"
    return kernels.select(
        "rank",
        pl.col("name").cast(pl.Categorical),
        pl.when(~compute)
        .then(pl.lit("communication"))
        .when(pl.col("_row").is_in(updating))
        .then(pl.lit("optimizer"))
        .otherwise("kernel_class")
        .alias("kernel_class"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("ns"),
    )


def _host_rows(run: Run, windows: StepWindows) -> pl.DataFrame:
    """CPU operators with their own time, all threads; waits for input and collectives are not among them."""
    ops = of_kind(run.table("ops"), "op").select("rank", "tid", "name", "start_ns", "end_ns")
    ops = in_steady(ops, windows, host=True)
    tree = call_tree(ops)
    tree = tree.with_columns(pl.Series("ns", self_ns(tree)))
    tree = where_name(tree, _is_operator)
    updating = inside(tree, optimizer_spans(run))["row"].to_list()
    in_update = pl.when(pl.col("row").is_in(updating)).then(pl.lit("optimizer"))
    named = labelled(tree, op_class, "kernel_class")
    return named.select("rank", "name", in_update.otherwise("kernel_class").alias("kernel_class"), "ns")


def _is_operator(name: str) -> bool:
    """An operator of a library: neither a span of the engine, nor a wait for input, nor communication."""
    engine = name.startswith(("autograd::", "torch::autograd::", "torch::distributed::", "torch::jit::"))
    return "::" in name and not engine and not is_loader(name) and collective_op(name) is None


def _by(rows: pl.DataFrame, keys: list[str], steps: int) -> pl.DataFrame:
    total = max(int(rows["ns"].sum()), 1)
    found = rows.group_by(keys).agg(
        (pl.col("ns").sum() / steps / NS_PER_MS).alias("ms_per_step"),
        (pl.col("ns").sum() / total).alias("share"),
        (pl.len() / steps).alias("count_per_step"),
        (pl.col("ns").median() / 1e3).alias("median_us"),
    )
    named = [pl.col("name").cast(pl.String)] if "name" in keys else []
    return found.with_columns(named).sort(["ms_per_step", keys[0]], descending=[True, False])


def _share(rows: pl.DataFrame, total: int) -> float:
    return int(rows["ns"].sum()) / total if total else 0.0


def _per_rank(compute: pl.DataFrame, windows: StepWindows) -> pl.DataFrame:
    steps = windows.steady.group_by("rank").len("steps")
    spent = compute.group_by("rank").agg(pl.col("ns").sum())
    found = steps.join(spent, on="rank", how="left").join(rank_slowdown(compute, steps), on="rank", how="left")
    return found.sort("rank").select(
        "rank", (pl.col("ns").fill_null(0) / pl.col("steps") / NS_PER_MS).alias("compute_ms"), "slowdown"
    )


def rank_slowdown(compute: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """rank and slowdown: how much longer the same kernels take on it than on its peers (1.0: as long).

    The median over kernels of the rank's mean duration / the median of the ranks' means. A slow device is slow at all
    of them, a rank with more work at some: hence the plain median, and no lookups, whose work depends on the data. Only
    ranks that run a kernel equally often per step are compared, which leaves out other pipeline stages. A rank is
    absent without enough such kernels. *compute*: rank, name, kernel_class, ns per kernel; *steps*: rank, steps.
    """
    rows = compute.filter(pl.col("kernel_class") != "embedding").group_by("rank", "name")
    means = rows.agg(pl.col("ns").mean().alias("mean"), pl.len().alias("count")).join(steps, on="rank")
    means = means.with_columns((pl.col("count") / pl.col("steps")).alias("rate"))
    typical = pl.col("rate").median().over("name")
    alike = means.filter((pl.col("rate") / typical - 1).abs() <= _SAME_COUNT)
    usual = pl.col("mean").median().over("name")
    alike = alike.filter((pl.len().over("name") > 1) & (usual >= _TIMEABLE_NS))
    ratios = alike.with_columns((pl.col("mean") / usual).alias("ratio")).group_by("rank")
    found = ratios.agg(pl.col("ratio").median().alias("slowdown"), pl.len().alias("kernels"))
    return found.filter(pl.col("kernels") >= _ENOUGH_KERNELS).select("rank", "slowdown")
