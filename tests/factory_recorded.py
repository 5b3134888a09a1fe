"""Healthy signals that only a recording gives (see ``tests/factories.py``)."""

from __future__ import annotations

from typing import Any

import polars as pl

from ddiag.model.recorded import EXITS
from ddiag.model.signals_recorded import Exits
from tests.factory_time import EPOCH_NS, Given, Shape

SECOND_NS = 1_000_000_000


def exits(shape: Shape, given: Given) -> Exits:
    """Every rank returned 0. Shorthand ``ends``: {rank: its columns}, ``end_s`` in seconds after a common time."""
    ends: dict[int, dict[str, Any]] = given.pop("ends", {})
    rows = [_end(rank, dict(ends.get(rank, {}))) for rank in shape.ranks]
    table = pl.DataFrame(rows, schema={**EXITS.schema, "out_of_memory_kills": pl.Int64})
    return Exits(**{"table": table, "exit_code": 0, **given})


def _end(rank: int, given: dict[str, Any]) -> dict[str, Any]:
    usual = {
        "rank": rank,
        "host": f"node{rank // 4}",
        "pid": 1000 + rank,
        "end_ns": EPOCH_NS + int(given.pop("end_s", 10.0) * SECOND_NS),
        "exit_code": None if "signal" in given else 0,
        "closed": "signal" not in given,
        "last_ns": EPOCH_NS,
    }
    return {**usual, **given}
