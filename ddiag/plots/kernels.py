"""What the compute kernels are."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from ddiag.model.signals import KernelMix, Signals, StepBudget
from ddiag.plots.chart import Chart, axis, style
from ddiag.plots.numbers import percent, short
from ddiag.plots.palette import COMPUTE, COPY, TRANSFER, bar_marker
from ddiag.plots.table import Column, make_table

COLUMNS = (
    Column("kernel_class", "Class", kind="text"),
    Column("ms_per_step", "Time per step", "ms"),
    Column("share", "Share of kernel time", "%", "share"),
    Column("count_per_step", "Kernels per step", "", "count"),
    Column("median_us", "Median", "µs"),
)
WORDS = {
    "gemm": "matmul (GEMM)",
    "conv": "convolution",
    "norm": "normalisation",
    "copy": "copies by kernel",
}


def unit_of_work(signals: Signals) -> str:
    """'Kernel', or 'Operator' where the trace has no device activity and CPU operators stand for compute."""
    budget = signals.get(StepBudget)
    return "Operator" if budget is not None and not budget.on_device else "Kernel"


def kernel_classes(signals: Signals) -> Chart | None:
    """Kernel time per step by class."""
    mix = signals.get(KernelMix)
    if mix is None or mix.table.is_empty():
        return None
    table = mix.table.with_columns(pl.col("kernel_class").cast(pl.String).replace(WORDS))
    table = table.sort("ms_per_step", descending=True).filter(pl.col("ms_per_step") > 0)
    if table.is_empty():
        return None
    what = unit_of_work(signals)
    figure, longest = go.Figure(), float(table["ms_per_step"].to_list()[0])
    colour = {"communication": TRANSFER, WORDS["copy"]: COPY}
    for row in table.to_dicts():
        words = f"{short(row['ms_per_step'])} ms · {percent(row['share'] or 0.0)}"
        figure.add_bar(
            orientation="h",
            y=[row["kernel_class"]],
            x=[row["ms_per_step"]],
            text=[words],
            textposition="outside",
            cliponaxis=False,
            marker=bar_marker(colour.get(row["kernel_class"], COMPUTE)),
            hovertemplate=f"%{{y}}: {words}<extra></extra>",
        )
    style(
        figure,
        height=64 + 26 * table.height,
        xaxis=axis("ms per step", range=[0, longest * 1.28]),
        yaxis=axis("", autorange="reversed", showgrid=False, ticksuffix=" "),
    )
    return Chart(
        "kernel-classes",
        f"{what} time by class",
        "ms per step",
        f"The longest bars are what takes most time; many short {what.lower()}s of one class are a chance to fuse.",
        figure,
        make_table("kernel-classes-data", f"{what} classes", COLUMNS, table),
    )
