"""A chart as the reports know it: figure, title, unit, how to read it, and its data as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go

from ddiag.plots.palette import ACCENT, GRID, INK, MUTED, Activity
from ddiag.plots.table import DataTable

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


TOP_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left", "font": {"size": 12}}
"""For charts whose lines are not activities: above the data, never on it."""


@dataclass(frozen=True)
class Switch:
    """Buttons above a chart: each one restyles it."""

    label: str
    """What is being chosen, for screen readers: 'Sort', 'Show'."""
    options: tuple[tuple[str, dict[str, Any]], ...]
    """(words on the button, what plotly's update gets: {"data": {...}, "layout": {...}})."""


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    unit: str
    how_to_read: str
    figure: go.Figure
    data: DataTable
    keys: tuple[Activity, ...] = ()
    """Activities drawn, for the key above the chart."""
    note: str = ""
    """What was left out or averaged: 'ten slowest of 1,024 ranks'."""
    switch: Switch | None = None

    def figure_json(self) -> str:
        """The figure as JSON (not yet safe inside HTML)."""
        return str(self.figure.to_json())


def plotly_js() -> str:
    """plotly.js, minified, to inline once in a page with at least one chart."""
    return (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def plain(text: object) -> str:
    """Text from evidence, safe in a figure: plotly reads labels as a little HTML."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shorten(text: str, limit: int) -> str:
    """Cut in the middle, where names of kernels and hosts differ least."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis in the house style."""
    style: dict[str, Any] = {
        "title": {"text": title, "font": {"size": 13, "color": MUTED}, "standoff": 8},
        "tickfont": {"size": 12, "color": INK},
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "automargin": True,
        "fixedrange": True,
    }
    return {**style, **more}


def style(figure: go.Figure, *, height: int, **layout: Any) -> go.Figure:
    """Give *figure* the house style: no legend on the data, no template, transparent ground."""
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 8, "r": 16, "t": 8, "b": 8, "pad": 4},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 13, "color": INK},
        separators=".,",
        showlegend=False,
        hovermode="closest",
        dragmode=False,
        hoverlabel={"font": {"family": FONT, "size": 13}, "align": "left", "bordercolor": ACCENT},
        bargap=0.28,
    )
    figure.update_layout(**layout)
    return figure


def drawn(activities: Sequence[Activity], amounts: Sequence[float]) -> tuple[Activity, ...]:
    """The activities that take any room in the chart."""
    return tuple(a for a, amount in zip(activities, amounts, strict=True) if amount > 0)
