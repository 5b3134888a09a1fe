"""The step budget as one stacked bar per rank, drawn with characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddiag.model.signals import StepBudget
from ddiag.plots.numbers import percent, span
from ddiag.plots.palette import PARTS
from ddiag.reporters.glyphs import Glyphs

MOST_RANKS = 10
SHOWN_SHARE = 0.005
"""Parts below this share of every shown bar are left out of the key."""


@dataclass(frozen=True)
class StepBars:
    """Mean steady step of the ranks that lose most, by part."""

    ranks: tuple[int, ...]
    parts: tuple[dict[str, float], ...]
    """One per rank: column of the step budget -> ms."""
    caption: str
    culprits: tuple[int, ...] = ()
    """Ranks to mark."""

    def drawn(self, width: int, glyphs: Glyphs) -> list[RenderableType]:
        """Bars on one scale for *width* columns, and their key."""
        labels = [f"{glyphs.culprit if rank in self.culprits else ' '} rank {rank}" for rank in self.ranks]
        totals = [sum(parts.values()) for parts in self.parts]
        longest = max(totals, default=0.0)
        room = max(width - max(map(len, labels), default=0) - 14, 10)
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, width=room)
        table.add_column(justify="right", no_wrap=True)
        for label, parts, total in zip(labels, self.parts, totals, strict=True):
            table.add_row(label, _bar(parts, longest, room, glyphs), span(total))
        return [table, *self._key(width, glyphs)]

    def _key(self, width: int, glyphs: Glyphs) -> list[Text]:
        """What the characters mean, with each part's mean share of the bars; no entry is broken."""
        lines = [Text()]
        total = sum(sum(parts.values()) for parts in self.parts)
        for column, activity in PARTS.items():
            share = sum(parts[column] for parts in self.parts) / total if total else 0.0
            if share >= SHOWN_SHARE:
                entry = Text(glyphs.parts[column] * 2, activity.dark)
                entry.append(f" {activity.label.lower()} {percent(share)}", "default")
                if lines[-1].plain and len(lines[-1]) + 3 + len(entry) > width:
                    lines.append(Text())
                lines[-1].append("   " if lines[-1].plain else "").append_text(entry)
        return lines


def worst_ranks(budget: StepBudget, culprits: Sequence[int] = ()) -> StepBars:
    """The *culprits*, then the ranks that lose most (compute least of their step); ties go by rank.

    Culprits come first because a late rank loses least itself: it is the others that wait.
    """
    steady = budget.table.filter(pl.col("steady"))
    means = (
        steady.group_by("rank")
        .agg(pl.col("step_ms", *PARTS).mean())
        .with_columns(lost_ms=pl.col("step_ms") - pl.col("compute_ms"), blamed=pl.col("rank").is_in(list(culprits)))
        .sort(["blamed", "lost_ms", "rank"], descending=[True, True, False])
    )
    shown = means.head(MOST_RANKS)
    parts = tuple({column: max(float(row[column] or 0.0), 0.0) for column in PARTS} for row in shown.to_dicts())
    return StepBars(tuple(shown["rank"].to_list()), parts, _caption(budget, means.height), tuple(culprits))


def _caption(budget: StepBudget, ranks: int) -> str:
    if budget.source == "window":
        steps = "the one window"
    else:
        steps = "one steady step" if budget.n_steps == 1 else f"mean of {budget.n_steps} steady steps"
    return steps if ranks <= MOST_RANKS else f"{steps}; the worst {MOST_RANKS} of {ranks:,} ranks"


def _bar(parts: dict[str, float], longest: float, room: int, glyphs: Glyphs) -> Text:
    """One bar; its cells add up exactly, so equal steps look equal."""
    bar = Text()
    for (column, activity), cells in zip(PARTS.items(), _cells(list(parts.values()), longest, room), strict=True):
        bar.append(glyphs.parts[column] * cells, activity.dark)
    return bar


def _cells(values: Sequence[float], longest: float, room: int) -> list[int]:
    """Cells per part by largest remainder, so that they sum to the rounded length of the whole bar."""
    if longest <= 0:
        return [0] * len(values)
    exact = [value / longest * room for value in values]
    cells = [int(value) for value in exact]
    missing = round(sum(exact)) - sum(cells)
    for index in sorted(range(len(values)), key=lambda i: cells[i] - exact[i])[:missing]:
        cells[index] += 1
    return cells
