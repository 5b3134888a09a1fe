"""Device memory over time."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import polars as pl

from ddiag.model.signals import Memory, Signals, StepBudget
from ddiag.plots.chart import TOP_LEGEND, Chart, axis, plain, style
from ddiag.plots.numbers import size
from ddiag.plots.palette import MUTED, SERIES
from ddiag.plots.table import Column, make_table

MOST_LINES = 4
GIB = 2**30
PEAKS = (
    Column("rank", "Rank", kind="rank"),
    Column("device", "Device", kind="text"),
    Column("peak_allocated_bytes", "Peak allocated", "", "bytes"),
    Column("peak_reserved_bytes", "Peak reserved", "", "bytes"),
    Column("capacity_bytes", "Capacity", "", "bytes"),
    Column("peak_share", "Peak of capacity", "%", "share"),
)


DEVICE_WORDS = (
    "Solid is allocated to tensors, dotted is reserved by the allocator; a wide gap between them is fragmentation."
)
HOST_WORDS = "What the tensors of each rank hold."
PROCESS_WORDS = "Resident memory of each rank's process, as read at the end of steps."


def peaks(memory: Memory) -> pl.DataFrame:
    """Peak per rank and device, fullest first, with its share of the capacity."""
    used = pl.coalesce("peak_reserved_bytes", "peak_allocated_bytes")
    share = (used / pl.col("capacity_bytes")).alias("peak_share")
    return memory.per_rank.with_columns(share).sort("peak_allocated_bytes", descending=True, nulls_last=True)


def memory_timeline(signals: Signals, culprits: Sequence[int] = ()) -> Chart | None:
    """Allocated and reserved memory of the fullest devices (and of the culprits), against capacity."""
    memory = signals.get(Memory)
    if memory is None or memory.timeline.height < 2:
        return None
    order = peaks(memory)
    pairs = [(r, d) for r, d in order.select("rank", "device").iter_rows()]
    pairs.sort(key=lambda pair: pair[0] not in set(culprits))
    lines = pairs[:MOST_LINES]
    on_host = all(device == "cpu" for _, device in pairs)
    start, figure = min(memory.timeline["ts_ns"].to_list()), go.Figure()
    end = _last_seen(memory, signals)
    for (rank, device), colour in zip(lines, SERIES, strict=False):
        mine = memory.timeline.filter((pl.col("rank") == rank) & (pl.col("device") == device)).sort("ts_ns")
        for column, dash in (("allocated_bytes", "solid"), ("reserved_bytes", "dot")):
            if mine[column].null_count() < mine.height:
                line = _line(_until(mine, end), column, dash, colour, start, f"rank {rank} · {device}")
                figure.add_scatter(**line, showlegend=dash == "solid")
    capacities = order["capacity_bytes"].drop_nulls()
    limit, top = min(capacities.to_list(), default=None), _highest(memory.timeline)
    if limit is not None and limit < top * 2.5:
        figure.add_hline(
            y=limit / GIB, line={"color": MUTED, "width": 1, "dash": "dash"},
            annotation={"text": f"capacity {size(limit)}", "font": {"color": MUTED}, "yshift": 8},
        )  # fmt: skip
    style(
        figure,
        height=300,
        xaxis=axis("ms since the first value", tickformat=",~r"),
        yaxis=axis("GiB", rangemode="tozero", tickformat=",~r"),
        showlegend=True,
        legend=TOP_LEGEND,
    )
    return Chart(
        "memory-timeline",
        "Host memory over time" if on_host else "Device memory over time",
        "GiB",
        _words(signals, on_host=on_host),
        figure,
        make_table("memory-timeline-data", "Peak memory per rank", PEAKS, order),
        note=f"{len(lines)} of {len(pairs):,} devices: the fullest and those named in findings."
        if len(pairs) > len(lines)
        else "",
    )


def _recorded(signals: Signals) -> bool:
    budget = signals.get(StepBudget)
    return budget is not None and budget.source == "recorded"


def _words(signals: Signals, *, on_host: bool) -> str:
    if not on_host:
        return DEVICE_WORDS
    return PROCESS_WORDS if _recorded(signals) else HOST_WORDS


def _last_seen(memory: Memory, signals: Signals) -> int:
    """Up to when the values are known to hold: only changes are kept, and a recording goes on to its last step."""
    ends = [memory.timeline["ts_ns"].max()]
    budget = signals.get(StepBudget)
    if budget is not None and _recorded(signals) and not budget.table.is_empty():
        ends.append(budget.table["end_ns"].max())
    return max(int(end) for end in ends if isinstance(end, int))


def _until(rows: pl.DataFrame, end: int) -> pl.DataFrame:
    """*rows* and the last of them once more at *end*."""
    return pl.concat([rows, rows.tail(1).with_columns(ts_ns=pl.lit(end, dtype=rows["ts_ns"].dtype))])


def _highest(timeline: pl.DataFrame) -> int:
    columns = timeline.select("allocated_bytes", "reserved_bytes").iter_columns()
    return max((max(c.drop_nulls().to_list(), default=0) for c in columns), default=0)


def _line(rows: pl.DataFrame, column: str, dash: str, colour: str, start: int, name: str) -> dict[str, object]:
    words = f"{plain(name)}, {column.removesuffix('_bytes')}"
    return {
        "x": ((rows["ts_ns"] - start) / 1e6).to_numpy(),
        "y": (rows[column] / GIB).to_numpy(),
        "mode": "lines",
        "line": {"color": colour, "width": 1.6, "dash": dash, "shape": "hv"},
        "name": plain(name),
        "hovertemplate": f"{words}: %{{y:,.2f}} GiB at %{{x:,.1f}} ms<extra></extra>",
    }
