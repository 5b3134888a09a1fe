"""The visual grammar: one colour, pattern and word per activity, the same in every chart, key and table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Activity:
    """What a rank can be doing, and how it is drawn."""

    key: str
    """CSS class suffix and name in the timeline's data."""
    label: str
    light: str
    """Colour on a light ground."""
    dark: str
    """Colour on a dark ground."""
    pattern: str = ""
    """plotly pattern shape: tells activities apart in black and white."""
    light_ground: str = ""
    """Colour beneath the pattern, light; empty = the colour itself, with the pattern in the page's ground."""
    dark_ground: str = ""


COMPUTE = Activity("compute", "Compute", "#2f6db5", "#5a9be0")
OVERLAP = Activity(
    "overlap", "Compute with communication hidden under it", "#f3cd9f", "#8a6740", "/", "#2f6db5", "#5a9be0"
)
TRANSFER = Activity("transfer", "Exposed communication", "#e0801f", "#f09a45")
WAIT = Activity("wait", "Waiting for a rank", "#c2303a", "#ff7b7b", "/", "#fbe3e3", "#4a2528")
COPY = Activity("copy", "Exposed copies", "#12857e", "#3fbdb4")
INPUT = Activity("input", "Input", "#7748a8", "#b794e6", ".")
SYNC = Activity("sync", "Blocking synchronisation", "#5d3a1e", "#d9a679", "-")
HOST = Activity("host", "Host and launch", "#96683c", "#a87648")
IDLE = Activity("idle", "Idle, unexplained", "#b4bac2", "#5c646f")

ACTIVITIES: tuple[Activity, ...] = (COMPUTE, OVERLAP, TRANSFER, WAIT, COPY, INPUT, SYNC, HOST, IDLE)

PARTS: Mapping[str, Activity] = MappingProxyType(
    {
        "compute_ms": COMPUTE,
        "comm_transfer_ms": TRANSFER,
        "comm_wait_ms": WAIT,
        "copy_ms": COPY,
        "input_ms": INPUT,
        "sync_ms": SYNC,
        "host_ms": HOST,
        "idle_ms": IDLE,
    }
)
"""Columns of :class:`~ddiag.model.signals.StepBudget` that sum to the step, in drawing order."""

INK = "#1c2128"
MUTED = "#5b6572"
GRID = "#e3e6ea"
GROUND = "#ffffff"
ACCENT = "#0b5cad"

HEAT: tuple[tuple[float, str], ...] = (
    (0.0, "#f5f7fa"),
    (0.25, "#cfdcec"),
    (0.5, "#8fb0d6"),
    (0.75, "#4a7fba"),
    (1.0, "#173d6e"),
)
"""Low to high, in one hue, so that it also reads in grey."""

SERIES: tuple[str, ...] = ("#2e6cb4", "#d9771a", "#11847d", "#7647a7", "#95673b", "#6b7280")
"""For charts whose lines are not activities; told apart by marker or dash as well."""

_DARK: Mapping[str, str] = MappingProxyType(
    {
        INK: "#e6e9ee",
        MUTED: "#9aa4b1",
        GRID: "#2c333c",
        GROUND: "#161a1f",
        ACCENT: "#6cb2ff",
        "#f5f7fa": "#1d232b",
        "#cfdcec": "#22395a",
        "#8fb0d6": "#2f62a3",
        "#4a7fba": "#5f9be0",
        "#173d6e": "#cfe4ff",
        "#2e6cb4": "#5b9ce1",
        "#d9771a": "#f0994a",
        "#11847d": "#40beb5",
        "#7647a7": "#b895e7",
        "#95673b": "#c99a6c",
        "#6b7280": "#9ca3af",
    }
)


def dark_of() -> dict[str, str]:
    """Light colour -> dark colour for every colour a figure may use; the page swaps them when the system theme does."""
    pairs = dict(_DARK)
    for activity in ACTIVITIES:
        pairs[activity.light] = activity.dark
        if activity.light_ground:
            pairs[activity.light_ground] = activity.dark_ground
    return pairs


def bar_marker(activity: Activity) -> dict[str, object]:
    """The plotly marker that draws *activity*."""
    line = {"color": GROUND, "width": 0.5}
    if not activity.pattern:
        return {"color": activity.light, "line": line}
    if activity.light_ground:
        hatch = {"shape": activity.pattern, "fgcolor": activity.light, "bgcolor": activity.light_ground}
        return {"color": activity.light, "line": line, "pattern": {**hatch, "size": 6, "solidity": 0.45}}
    hatch = {"shape": activity.pattern, "fgcolor": GROUND, "bgcolor": activity.light}
    return {"color": activity.light, "line": line, "pattern": {**hatch, "size": 7, "solidity": 0.15}}
