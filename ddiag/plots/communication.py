"""Communication: bandwidth against message size, and gradient buckets in launch order."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from ddiag.model.signals import Collectives, GradBuckets, Links, Signals
from ddiag.plots.chart import TOP_LEGEND, Chart, axis, plain, style
from ddiag.plots.numbers import amount, short, size
from ddiag.plots.palette import INK, MUTED, OVERLAP, SERIES, TRANSFER, Activity, bar_marker
from ddiag.plots.table import Column, make_table

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
MOST_OPS = 6
MOST_POINTS = 1500
MOST_BUCKETS = 80
HIDDEN = Activity("hidden", "Hidden under backward", OVERLAP.light, OVERLAP.dark)

SUMMARY = (
    Column("group", "Group", kind="code"),
    Column("op", "Operation", kind="text"),
    Column("bytes", "Message", "", "bytes"),
    Column("group_size", "Group size", "ranks", "count"),
    Column("count_per_step", "Calls", "per step", "count"),
    Column("steps", "Seen in", "steps", "count"),
    Column("busbw_gbps", "Bus bandwidth", "GB/s"),
    Column("expected_gbps", "Expected", "GB/s"),
    Column("efficiency", "Efficiency", "%", "share"),
    Column("dur_ms", "Duration", "ms/step"),
    Column("wait_ms", "Waiting", "ms/step"),
    Column("transfer_ms", "Transfer", "ms/step"),
    Column("exposed_ms", "Exposed", "ms/step"),
)

BUCKETS = (
    Column("number", "Bucket", kind="step"),
    Column("bytes", "Size", "", "bytes"),
    Column("start_offset_ms", "Start after backward began", "ms"),
    Column("dur_ms", "Duration", "ms"),
    Column("transfer_ms", "Transfer", "ms"),
    Column("exposed_ms", "Exposed", "ms"),
)


def collective_summary(signals: Signals) -> pl.DataFrame | None:
    """One row per group, operation and size, most exposed first, with the expected bandwidth where known."""
    communication, links = signals.get(Collectives), signals.get(Links)
    if communication is None or communication.summary.is_empty():
        return None
    keys = ["group", "op", "bytes"]
    rows = communication.summary.with_columns(pl.col("group", "op").cast(pl.String), pl.col("bytes").cast(pl.Int64))
    if links is not None and links.table.height:
        known = links.table.select(*keys, "expected_gbps", "efficiency").unique(keys)
        known = known.with_columns(pl.col("group", "op").cast(pl.String), pl.col("bytes").cast(pl.Int64))
        rows = rows.join(known, on=keys, how="left")
    rows = rows.join(_steps_of(communication), on=["group", "op"], how="left")
    return rows.sort("exposed_ms", "dur_ms", descending=True, nulls_last=True)


def _steps_of(communication: Collectives) -> pl.DataFrame:
    """group, op, steps: in how many steps they occur, which their figures per step are means over."""
    table = communication.table.select(pl.col("group", "op").cast(pl.String), "step")
    return table.group_by("group", "op").agg(pl.col("step").n_unique().cast(pl.Int64).alias("steps"))


def bandwidth_chart(signals: Signals) -> Chart | None:
    """Bus bandwidth against message size, one point per group, operation and size; a dash where it should be."""
    rows = collective_summary(signals)
    if rows is None:
        return None
    rows = rows.filter(pl.col("busbw_gbps").is_finite() & (pl.col("busbw_gbps") > 0) & (pl.col("bytes") > 0))
    if rows.is_empty():
        return None
    shown = rows.head(MOST_POINTS)
    ops = shown.group_by("op").agg(pl.col("dur_ms").sum()).sort("dur_ms", descending=True)["op"].to_list()
    figure = go.Figure()
    if "expected_gbps" in shown.columns and shown["expected_gbps"].drop_nulls().len():
        figure.add_scatter(**_expected(shown.filter(pl.col("expected_gbps").is_not_null())))
    for place, op in enumerate(ops):
        figure.add_scatter(**_points(shown.filter(pl.col("op") == op), op, min(place, MOST_OPS - 1)))
    style(
        figure,
        height=340,
        xaxis=axis("message size (log scale)", type="log", **_size_ticks(shown["bytes"])),
        yaxis=axis("bus bandwidth, GB/s", rangemode="tozero", tickformat=",~r"),
        showlegend=True,
        legend=TOP_LEGEND,
    )
    return Chart(
        "bandwidth",
        "Bus bandwidth against message size",
        "GB/s",
        "Points should rise to the right and level off near the expected bandwidth; a large message far below "
        "it is a slow link, a small one is bound by latency.",
        figure,
        make_table("bandwidth-data", "Bandwidth by message size", SUMMARY[:9], rows, cut_by="most exposed"),
        note=f"{shown.height:,} of {rows.height:,} combinations: the most exposed."
        if rows.height > shown.height
        else "",
    )


def _points(rows: pl.DataFrame, op: str, place: int) -> dict[str, object]:
    texts = [
        f"{plain(r['op'])}, group {plain(r['group'])}<br>{size(r['bytes'])}: {short(r['busbw_gbps'])} GB/s, "
        f"{amount(r['count_per_step'])} calls per step"
        for r in rows.to_dicts()
    ]
    return {
        "x": rows["bytes"].to_list(),
        "y": rows["busbw_gbps"].to_list(),
        "customdata": rows["group"].to_list(),
        "mode": "markers",
        "name": plain(op.replace("_", " ")),
        "marker": {"color": SERIES[place], "symbol": SYMBOLS[place], "size": 10, "line": {"color": INK, "width": 0.5}},
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _expected(rows: pl.DataFrame) -> dict[str, object]:
    return {
        "x": rows["bytes"].to_list(),
        "y": rows["expected_gbps"].to_list(),
        "customdata": rows["group"].to_list(),
        "mode": "markers",
        "name": "expected",
        "marker": {"color": MUTED, "symbol": "line-ew-open", "size": 18, "line": {"width": 2}},
        "hovertemplate": "expected %{y:,.1f} GB/s<extra></extra>",
    }


def _size_ticks(sizes: pl.Series) -> dict[str, object]:
    """Ticks at powers of two, written as sizes, at most nine of them; the range leaves half a step on both sides."""
    low, high = min(sizes.to_list()).bit_length() - 1, max(sizes.to_list()).bit_length()
    stride = max(1, -(-(high - low) // 8))
    powers = range(low, high + stride, stride)
    log2 = 0.30103
    return {
        "tickvals": [2**p for p in powers],
        "ticktext": [size(2**p).replace(".00", "").replace(".0", "") for p in powers],
        "range": [(low - 0.5) * log2, (powers[-1] + 0.5) * log2],
    }


def bucket_chart(signals: Signals) -> Chart | None:
    """Gradient buckets in launch order: how long each reduction took and how much of it was exposed."""
    buckets = signals.get(GradBuckets)
    if buckets is None or buckets.table.is_empty():
        return None
    rows = buckets.table.sort("index").with_columns(
        pl.min_horizontal(pl.col("exposed_ms").fill_null(0.0), "dur_ms").alias("exposed"),
    )
    shown, note = rows, ""
    if rows.height > MOST_BUCKETS:
        shown = rows.sort("dur_ms", descending=True).head(MOST_BUCKETS).sort("index")
        note = f"{MOST_BUCKETS} of {rows.height:,} buckets: the longest."
    names = [f"{index + 1}" for index in shown["index"].to_list()]
    texts = [f"bucket {n}, {size(b)}" for n, b in zip(names, shown["bytes"].to_list(), strict=True)]
    figure = go.Figure()
    for activity, amounts in ((HIDDEN, shown["dur_ms"] - shown["exposed"]), (TRANSFER, shown["exposed"])):
        figure.add_bar(
            x=names,
            y=amounts.to_list(),
            width=min(0.72, 0.1 * len(names)),
            marker=bar_marker(activity),
            text=texts,
            textposition="none",
            hovertemplate=f"%{{text}}<br>{activity.label}: %{{y:,.3~f}} ms<extra></extra>",
        )
    style(
        figure,
        height=280,
        barmode="stack",
        xaxis=axis("bucket, in launch order", type="category", showgrid=False, nticks=20),
        yaxis=axis("ms", rangemode="tozero", tickformat=",~r"),
    )
    table = rows.with_columns((pl.col("index") + 1).alias("number"))
    return Chart(
        "buckets",
        f"Gradient buckets: {amount(buckets.count_per_step)} per step, median {size(buckets.median_bytes)}",
        "ms per bucket",
        "Orange is reduction time nothing hides: only the last bucket should show some; all orange means no overlap.",
        figure,
        make_table("buckets-data", "Gradient buckets in launch order", BUCKETS, table),
        keys=(HIDDEN, TRANSFER),
        note=note,
    )
