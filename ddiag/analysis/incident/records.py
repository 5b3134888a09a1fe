"""The tables of an incident as typed records again, as rules and the reasoning read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ddiag.model.incident import Event, NodeFact, Setting, Stack
from ddiag.model.run import Run
from ddiag.model.signals_incident import Events, Metrics, NodeFacts, Settings, Stacks


def events(run: Run) -> Events | None:
    """All events in the order of the table (joining sorts it by time)."""
    found = tuple(
        Event(**{**row, "fields": json.loads(row["fields"] or "{}"), "clock": row["clock"] or ""})
        for row in _rows(run, "log_events")
    )
    return Events(found) if found else None


def settings(run: Run) -> Settings | None:
    found = tuple(Setting(**{**row, "kind": row["kind"] or ""}) for row in _rows(run, "config"))
    return Settings(found) if found else None


def node_facts(run: Run) -> NodeFacts | None:
    found = tuple(NodeFact(**row) for row in _rows(run, "node_facts"))
    return NodeFacts(found) if found else None


def metrics(run: Run) -> Metrics | None:
    return Metrics(run.table("log_metrics")) if run.has("log_metrics") else None


def stacks(run: Run) -> Stacks | None:
    found = tuple(Stack(**{**row, "frames": tuple(row["frames"] or ())}) for row in _rows(run, "stacks"))
    return Stacks(found) if found else None


def _rows(run: Run, table: str) -> Iterator[dict[str, Any]]:
    for row in run.table(table).iter_rows(named=True):
        yield {key: "" if value is None and key in _TEXTS else value for key, value in row.items()}


_TEXTS = frozenset({"text", "source", "thread", "state", "value", "key"})
"""Columns whose absence is an empty text in the records."""
