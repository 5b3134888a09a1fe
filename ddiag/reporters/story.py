"""The story of an incident as rows: when, who, what."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import NamedTuple

from ddiag.model.incident import BOOT
from ddiag.model.signals import Signals
from ddiag.model.signals_incident import Story, StoryLine
from ddiag.plots.table import Column, DataTable, make_table
from ddiag.reporters.words import clean
from ddiag.rulekit.cost import name_ranks

DAY_NS = 86_400 * 10**9
MOST_HOSTS = 2


class Row(NamedTuple):
    when: str
    """``02:11:07``, with the date where the story spans days; empty when unknown."""
    who: str
    """``rank 10 on gn12``, ``8 ranks``, ``gn12``; empty when unknown."""
    what: str
    source: str


def story_rows(story: Story) -> list[Row]:
    """One row per line of the story."""
    times = [line.ts_ns for line in story.lines if line.ts_ns is not None and line.clock != BOOT]
    with_date = bool(times) and max(times) - min(times) > DAY_NS
    return [
        Row(_when(line, with_date=with_date), clean(_who(line)), clean(line.what), clean(line.source))
        for line in story.lines
    ]


def story_table(signals: Signals) -> DataTable | None:
    """The story as a table of the report; None when there is none."""
    story = signals.get(Story)
    if story is None or len(story.lines) < 2:
        return None
    columns = (
        Column("when", "When", kind="text"),
        Column("who", "Who", kind="text"),
        Column("what", "What", kind="text"),
        Column("source", "Where from", kind="code"),
    )
    rows = [{key: value or None for key, value in row._asdict().items()} for row in story_rows(story)]
    return make_table("what-happened", "Events in order (times as the logs print them)", columns, rows)


def _when(line: StoryLine, *, with_date: bool) -> str:
    if line.ts_ns is None:
        return ""
    if line.clock == BOOT:
        return f"boot+{line.ts_ns / 1e9:.0f}s"
    moment = datetime.fromtimestamp(line.ts_ns / 1e9, tz=timezone.utc)
    return moment.strftime("%m-%d %H:%M:%S" if with_date else "%H:%M:%S")


def _who(line: StoryLine) -> str:
    hosts = "" if len(line.hosts) > MOST_HOSTS else ", ".join(line.hosts)
    if not line.ranks:
        return hosts or (f"{len(line.hosts)} hosts" if line.hosts else "")
    ranks = name_ranks(line.ranks)
    return f"{ranks} on {hosts}" if hosts else ranks
