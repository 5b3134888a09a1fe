"""Ranks × steps: who was slow, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import polars as pl

from ddiag.model.signals import JobFacts, Signals, StepBudget
from ddiag.plots.chart import Chart, Switch, axis, plain, style
from ddiag.plots.numbers import short
from ddiag.plots.palette import HEAT, MUTED
from ddiag.plots.step_time import rank_label, steady_rows
from ddiag.plots.table import Column, DataTable, make_table

MOST_STEPS = 200
MOST_ROWS = 256
MOST_LABELS = 32
METRICS = (
    ("own_ms", "Own time"),
    ("comm_wait_ms", "Waiting"),
    ("input_ms", "Input"),
    ("compute_ms", "Compute"),
    ("step_ms", "Step time"),
)
"""Column and the words on its button; own time = step minus waiting, where a late rank stands out."""


@dataclass(frozen=True)
class Grid:
    rows: list[tuple[int, int]]
    """First and last rank of each row."""
    steps: list[int]
    """First step of each column."""
    values: dict[str, npt.NDArray[np.float64]]
    """Metric -> rows × columns, NaN where there is no measurement; the longest where a cell stands for several."""
    ranks: int
    per_column: int
    """Steps in one column."""

    def label(self, row: int, facts: JobFacts | None) -> str:
        first, last = self.rows[row]
        return rank_label(first, facts) if first == last else f"ranks {first}–{last}"


def heat_map(signals: Signals) -> Chart | None:
    """Own time (and waiting, input, compute) of every rank in every step; needs two of both."""
    budget, facts = signals.get(StepBudget), signals.get(JobFacts)
    if budget is None:
        return None
    rows = steady_rows(budget)
    if rows["rank"].n_unique() < 2 or rows["step"].n_unique() < 2:
        return None
    grid = _grid(rows)
    metrics = [(key, words) for key, words in METRICS if np.nanmax(grid.values[key]) > 0]
    if not metrics:
        return None
    first = metrics[0][0]
    figure = go.Figure(
        go.Heatmap(
            **_cells(grid, first),
            x=[str(step) for step in grid.steps],
            y=[plain(grid.label(row, facts)) for row in range(len(grid.rows))],
            colorscale=[list(stop) for stop in HEAT],
            colorbar={"title": {"text": "ms", "side": "top"}, "thickness": 12, "outlinewidth": 0, "tickformat": ",~r"},
            xgap=1 if len(grid.steps) <= 60 else 0,
            ygap=1 if len(grid.rows) <= 64 else 0,
            hovertemplate="%{y}, step %{x}: %{z:,.3~f} ms<extra></extra>",
        )
    )
    few = len(grid.rows) <= MOST_LABELS
    style(
        figure,
        height=int(96 + min(max(len(grid.rows) * 22, 110), 520)),
        xaxis=axis("step", type="category", showgrid=False, nticks=16),
        yaxis=axis(
            "" if few else "rank", type="category", autorange="reversed", showgrid=False, ticksuffix=" ",
            nticks=MOST_LABELS if few else 18, title_font_color=MUTED,
        ),
    )  # fmt: skip
    return Chart(
        "heat-map",
        "How long each rank took, step by step",
        "ms",
        "The stronger the colour, the longer: a strong row is a slow rank, a column a slow step, a cell a pause.",
        figure,
        _table(rows),
        note=_note(grid, rows),
        switch=Switch("Show", tuple((words, _option(grid, key)) for key, words in metrics)),
    )


def _option(grid: Grid, key: str) -> dict[str, object]:
    return {"data": {name: [value] for name, value in _cells(grid, key).items()}}


def _cells(grid: Grid, key: str) -> dict[str, object]:
    """Values and colour range; a spread under a fifth of the longest does not use it all, so noise stays pale."""
    values = grid.values[key]
    high = float(np.nanmax(values))
    low = min(float(np.nanmin(values)), 0.8 * high) if key in ("own_ms", "compute_ms", "step_ms") else 0.0
    return {"z": _compact(values), "zmin": low, "zmax": high if high > low else low + 1.0}


def _compact(values: npt.NDArray[np.float64]) -> list[list[float | None]]:
    """Four significant digits and null for NaN: small in the page, exact enough for a colour."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = 3 - np.floor(np.log10(np.where(values > 0, values, 1.0)))
    scale = 10.0 ** np.clip(digits, 0, 6)
    rounded = np.round(values * scale) / scale
    return [[None if np.isnan(v) else float(v) for v in row] for row in rounded]


def _grid(rows: pl.DataFrame) -> Grid:
    """Bin ranks and steps to what a screen can show; a cell is the longest of its bin, so nothing is averaged away."""
    steps, ranks = rows["step"].unique().sort(), rows["rank"].unique().sort()
    per_column, per_row = -(-len(steps) // MOST_STEPS), -(-len(ranks) // MOST_ROWS)
    keys = [key for key, _ in METRICS]
    binned = rows.with_columns(
        pl.Series("i", np.searchsorted(ranks.to_numpy(), rows["rank"].to_numpy()) // per_row),
        pl.Series("j", np.searchsorted(steps.to_numpy(), rows["step"].to_numpy()) // per_column),
    )
    cells = binned.group_by("i", "j").agg(pl.col(keys).max())
    values = {}
    for key in keys:
        grid = np.full((-(-len(ranks) // per_row), -(-len(steps) // per_column)), np.nan)
        grid[cells["i"].to_numpy(), cells["j"].to_numpy()] = cells[key].to_numpy()
        values[key] = grid
    firsts, every = ranks.gather_every(per_row).to_list(), ranks.to_list()
    lasts = [every[min((k + 1) * per_row, len(every)) - 1] for k in range(len(firsts))]
    spans = list(zip(firsts, lasts, strict=True))
    return Grid(spans, steps.gather_every(per_column).to_list(), values, len(ranks), per_column)


def _note(grid: Grid, rows: pl.DataFrame) -> str:
    parts = []
    if grid.per_column > 1:
        parts.append(f"Each column is the longest of {grid.per_column} steps, named after its first.")
    if len(grid.rows) < grid.ranks:
        parts.append(f"{grid.ranks:,} ranks in {len(grid.rows)} rows: each row is the longest of its ranks.")
    own = rows["own_ms"]
    median, highest = float(own.median() or 0.0), float(own.max() or 0.0)  # type: ignore[arg-type]
    parts.append(f"Own time: median {short(median)} ms, longest {short(highest)} ms.")
    return " ".join(parts)


def _table(rows: pl.DataFrame) -> DataTable:
    columns = (
        Column("rank", "Rank", kind="rank"),
        Column("step", "Step", kind="step"),
        *(Column(key, words, "ms") for key, words in METRICS),
    )
    worst = rows.sort("own_ms", "rank", "step", descending=[True, False, False])
    return make_table(
        "heat-map-data", "Rank and step, longest first", columns, worst, limit=60, cut_by="longest own time"
    )
