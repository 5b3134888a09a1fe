"""Where the step goes: from ideal to measured, per rank, and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import polars as pl

from ddiag.model.signals import Collectives, JobFacts, Signals, StepBudget
from ddiag.plots.chart import Chart, Switch, axis, drawn, plain, shorten, style
from ddiag.plots.numbers import percent, short, span
from ddiag.plots.palette import COMPUTE, GROUND, IDLE, OVERLAP, PARTS, Activity, bar_marker
from ddiag.plots.table import Column, make_table

MOST_RANKS = 16
"""Above this only the slowest ranks, the median and the fastest are drawn."""
WORST = 10
MOST_STEPS = 120

UNMATCHED = "Exposed communication includes waiting for other ranks: these traces cannot tell the two apart."

PART_COLUMNS = tuple(Column(name, activity.label, "ms") for name, activity in PARTS.items())
OWN = Column("own_ms", "Own time (step − waiting)", "ms")


def steady_rows(budget: StepBudget) -> pl.DataFrame:
    """Rows of steady steps, nulls as 0; all rows when no step is steady (a capture shorter than a step)."""
    table = budget.table.filter(pl.col("steady"))
    table = table if table.height else budget.table
    numbers = [*PARTS, "overlapped_comm_ms", "step_ms"]
    absent = [pl.lit(0.0).alias(name) for name in numbers if name not in table.columns]
    filled = table.with_columns(absent).with_columns(pl.col(numbers).cast(pl.Float64).fill_null(0.0).fill_nan(0.0))
    return filled.with_columns((pl.col("step_ms") - pl.col("comm_wait_ms")).alias("own_ms"))


def rank_label(rank: int, facts: JobFacts | None) -> str:
    """``rank 7``, with its host when the job has several."""
    name = f"rank {rank}" if rank >= 0 else f"trace {-rank}"
    if facts is None or len(facts.hosts) < 2 or rank not in facts.host_of:
        return name
    return f"{name} · {shorten(facts.host_of[rank], 18)}"


def waterfall(signals: Signals) -> Chart | None:
    """From the ideal step (compute only) to the measured one, one bar per kind of loss."""
    budget = signals.get(StepBudget)
    if budget is None or budget.table.is_empty():
        return None
    means = steady_rows(budget).select([pl.col(name).mean() for name in [*PARTS, "step_ms"]]).row(0, named=True)
    step = means["step_ms"]
    losses = [(name, means[name]) for name in PARTS if name != "compute_ms" and means[name] >= step * 5e-4]
    if step <= 0:
        return None
    figure, base = go.Figure(), means["compute_ms"]
    figure.add_bar(**_bar("Ideal: compute only", 0.0, base, COMPUTE, step))
    for name, amount in losses:
        figure.add_bar(**_bar(f"+ {PARTS[name].label}", base, amount, PARTS[name], step))
        base += amount
    total = _bar("Measured step", 0.0, step, IDLE, step)
    total["marker"] = {"color": GROUND, "line": {"color": "#5b6572", "width": 1.5}}
    figure.add_bar(**total)
    style(
        figure,
        height=64 + 30 * (len(losses) + 2),
        barmode="overlay",
        xaxis=axis("ms per step, mean over steady steps and ranks", range=[0, step * 1.22], rangemode="tozero"),
        yaxis=axis("", autorange="reversed", showgrid=False, ticksuffix=" "),
    )
    records = [{"part": PARTS[n].label, "ms": means[n], "share": means[n] / step} for n in PARTS]
    columns = (Column("part", "Part", kind="text"), Column("ms", "Time per step", "ms"))
    data = make_table(
        "waterfall-data",
        f"Parts of the mean step of {span(step)}",
        (*columns, Column("share", "Share of step", "%", "share")),
        [*records, {"part": "Measured step", "ms": step, "share": 1.0}],
    )
    return Chart(
        "waterfall",
        "From the ideal step to the measured one",
        "ms per step",
        "Each bar starts where the one above it ends: remove a cause and the step gets shorter by at most its bar.",
        figure,
        data,
        note=UNMATCHED if means["comm_transfer_ms"] > 0 and not _matched(signals) else "",
    )


def _matched(signals: Signals) -> bool:
    communication = signals.get(Collectives)
    return communication is not None and communication.matched_ranks > 1


def _bar(label: str, base: float, amount: float, activity: Activity, step: float) -> dict[str, object]:
    words = f"{short(amount)} ms · {percent(amount / step)}"
    return {
        "orientation": "h",
        "y": [label],
        "x": [amount],
        "base": [base],
        "marker": bar_marker(activity),
        "text": [words],
        "textposition": "outside",
        "cliponaxis": False,
        "textfont": {"size": 12},
        "hovertemplate": f"{label.lstrip('+ ')}: {words}<extra></extra>",
    }


def rank_bars(signals: Signals, culprits: Sequence[int] = ()) -> Chart | None:
    """Stacked parts of the mean steady step, one bar per rank; of many ranks slowest, median and fastest."""
    budget, facts = signals.get(StepBudget), signals.get(JobFacts)
    if budget is None or budget.table["rank"].n_unique() < 2:
        return None
    rows = steady_rows(budget)
    names = [*PARTS, "overlapped_comm_ms", "step_ms", "own_ms"]
    every = rows.group_by("rank").agg(pl.col(names).mean())
    order = _slowness(every)
    every = every.sort(order.column, "rank", descending=[order.descending, False])
    shown, note = _few(every, order, culprits)
    labels = {r: plain(rank_label(r, facts)) for r in shown["rank"].to_list()}
    figure, stack = go.Figure(), _stack(shown)
    for activity, amounts in stack:
        figure.add_bar(**_rank_bar(activity, amounts, labels))
    slowest = [labels[r] for r in shown["rank"].to_list()]
    longest = [labels[r] for r in shown.sort("step_ms", "rank", descending=[True, False])["rank"].to_list()]
    in_order = [labels[r] for r in sorted(shown["rank"].to_list())]
    style(
        figure,
        height=64 + 26 * len(slowest),
        barmode="stack",
        xaxis=axis("ms per step, mean over steady steps", rangemode="tozero"),
        yaxis=axis(
            "", categoryorder="array", categoryarray=slowest, autorange="reversed", ticksuffix=" ", showgrid=False
        ),
    )
    columns = (Column("rank", "Rank", kind="rank"), Column("step_ms", "Step", "ms"), OWN, *PART_COLUMNS)
    hidden = Column("overlapped_comm_ms", "Communication hidden under compute", "ms")
    return Chart(
        "rank-bars",
        "Each rank’s step, by part",
        "ms per step",
        "One bar is one rank’s mean step; the rank with the least waiting is the one the others wait for.",
        figure,
        make_table(
            "rank-bars-data", "Mean steady step per rank", (*columns, hidden), every, cut_by="slowest by own time"
        ),
        keys=drawn([a for a, _ in stack], [sum(amounts) for _, amounts in stack]),
        note=note,
        switch=_switch({order.words: slowest, "Longest step first": longest, "By rank": in_order}),
    )


def _rank_bar(activity: Activity, amounts: list[float], labels: dict[int, str]) -> dict[str, object]:
    """One activity of every rank; *labels* are in the order of *amounts*."""
    return {
        "orientation": "h",
        "y": list(labels.values()),
        "x": amounts,
        "customdata": list(labels),
        "name": activity.label,
        "marker": bar_marker(activity),
        "hovertemplate": f"%{{y}}<br>{activity.label}: %{{x:,.3~f}} ms<extra></extra>",
    }


@dataclass(frozen=True)
class Order:
    """By what ranks are called slow."""

    column: str
    descending: bool
    words: str
    least: str
    most: str


LATE = Order("comm_wait_ms", False, "Least waiting first", "that wait least", "that waits most")
LONG = Order("step_ms", True, "Longest step first", "with the longest steps", "with the shortest")


def _slowness(every: pl.DataFrame) -> Order:
    """Where ranks wait for each other their steps are equally long, and the slow one is the one that waits least."""
    waiting = float(every["comm_wait_ms"].sum()) >= 0.01 * float(every["step_ms"].sum())
    return LATE if waiting else LONG


def _switch(orders: dict[str, list[str]]) -> Switch:
    return Switch("Sort", tuple((words, {"layout": {"yaxis.categoryarray": names}}) for words, names in orders.items()))


def _few(every: pl.DataFrame, order: Order, culprits: Sequence[int]) -> tuple[pl.DataFrame, str]:
    """The ranks to draw of *every* (sorted by *order*), and a sentence that says which."""
    count = every.height
    if count <= MOST_RANKS:
        return every, ""
    keep = set(range(WORST)) | {count // 2, count - 1}
    keep |= {i for i, rank in enumerate(every["rank"].to_list()) if rank in set(list(culprits)[:4])}
    shown = every[sorted(keep)]
    quantiles = [span(float(every[order.column].quantile(q) or 0.0)) for q in (0.05, 0.5, 0.95)]
    what = "Waiting" if order is LATE else "Step time"
    note = (
        f"{shown.height} of {count:,} ranks: the {WORST} {order.least}, the median, the one {order.most} and those "
        f"named in findings. {what} over all ranks: 5th percentile {quantiles[0]}, median {quantiles[1]}, "
        f"95th percentile {quantiles[2]}."
    )
    return shown, note


def _stack(rows: pl.DataFrame) -> list[tuple[Activity, list[float]]]:
    """Activities with their amounts per row; compute is split by whether communication runs beneath it."""
    hidden = rows.select(pl.min_horizontal("overlapped_comm_ms", "compute_ms"))["overlapped_comm_ms"]
    stack = [(COMPUTE, (rows["compute_ms"] - hidden).to_list()), (OVERLAP, hidden.to_list())]
    stack += [(activity, rows[name].to_list()) for name, activity in PARTS.items() if name != "compute_ms"]
    return [(activity, amounts) for activity, amounts in stack if sum(amounts) > 0]


def step_bars(signals: Signals) -> Chart | None:
    """Stacked parts of each step of a job of one rank."""
    budget = signals.get(StepBudget)
    if budget is None or budget.table["rank"].n_unique() != 1:
        return None
    rows = steady_rows(budget).sort("step")
    if rows.height < 2:
        return None
    shown, note = rows, ""
    if rows.height > MOST_STEPS:
        shown = rows.sort("step_ms", descending=True).head(MOST_STEPS).sort("step")
        note = f"{MOST_STEPS} of {rows.height:,} steps: the longest."
    figure, stack = go.Figure(), _stack(shown)
    for activity, amounts in stack:
        figure.add_bar(
            x=[str(step) for step in shown["step"].to_list()],
            y=amounts,
            name=activity.label,
            marker=bar_marker(activity),
            hovertemplate=f"step %{{x}}<br>{activity.label}: %{{y:,.3~f}} ms<extra></extra>",
        )
    style(
        figure,
        height=300,
        barmode="stack",
        xaxis=axis("step", type="category", showgrid=False, nticks=20),
        yaxis=axis("ms", rangemode="tozero"),
    )
    columns = (Column("step", "Step", kind="step"), Column("step_ms", "Step time", "ms"), *PART_COLUMNS)
    return Chart(
        "step-bars",
        "Each step, by part",
        "ms",
        "One bar is one step: even bars are a steady cost, single tall ones a pause.",
        figure,
        make_table("step-bars-data", "Parts of each steady step", columns, rows),
        keys=drawn([a for a, _ in stack], [sum(amounts) for _, amounts in stack]),
        note=note,
    )
