"""What a reader of logs, dumps, tool outputs or configurations returns, and how records become tables."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

from ddiag.ingest.sources import Source
from ddiag.model.columns import Table
from ddiag.model.incident import (
    CONFIG,
    FLIGHT_STATUS,
    LOG_EVENTS,
    LOG_METRICS,
    NODE_FACTS,
    STACKS,
    Event,
    Metric,
    NodeFact,
    Seen,
    Setting,
    Stack,
    Standing,
)
from ddiag.schema.secrets import redact

MOST_TEXT = 2000
"""Characters of an event's line that are kept."""
_TABLE_OF: Mapping[type, Table] = {
    Event: LOG_EVENTS,
    Metric: LOG_METRICS,
    Setting: CONFIG,
    NodeFact: NODE_FACTS,
    Stack: STACKS,
    Standing: FLIGHT_STATUS,
}


@dataclass(frozen=True)
class Clues:
    """What one file gave. Ranks and hosts are those the content states; joining fills the others in."""

    source: Source
    kind: str
    """log, dmesg, nvidia-smi, flight_recorder, ras, ds_config …"""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    rank: int | None = None
    host: str | None = None
    """The whole file is of this rank or host."""
    world_size: int | None = None
    read: int = 0
    """Lines or records looked at."""
    dropped: int = 0
    notes: tuple[str, ...] = ()


def to_tables(records: Iterable[Seen]) -> dict[str, pl.DataFrame]:
    """Records by table; a table without records is absent."""
    rows: dict[str, list[dict[str, object]]] = defaultdict(list)
    for record in records:
        rows[_TABLE_OF[type(record)].name].append(_row(record))
    declared = {table.name: table for table in _TABLE_OF.values()}
    return {
        name: pl.DataFrame(found, schema=declared[name].schema, strict=False, orient="row")
        for name, found in rows.items()
    }


def _row(record: Seen) -> dict[str, object]:
    row = {one.name: _fitting(getattr(record, one.name)) for one in dataclasses.fields(record)}
    if isinstance(record, Event):
        row["fields"] = json.dumps(dict(record.fields))
        row["text"] = redact(record.text)[:MOST_TEXT]
    elif isinstance(record, Stack):
        row["frames"] = list(record.frames)
    elif isinstance(record, Standing) and record.ranks is not None:
        row["ranks"] = list(record.ranks)
    return row


def _fitting(value: object) -> object:
    """*value*, or nothing for a number that a column cannot hold: damaged digits, not a time or a count."""
    return None if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else value
