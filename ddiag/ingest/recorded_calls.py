"""The calls that a capture of a hang holds, as rows of the tables ``flight`` and ``flight_status``.

Two things a ring does not tell are inferred. Where nobody sees when calls end (NCCL), a call is taken for done once the
rank has issued a later one of another step or every member has issued it. And a call whose end is seen only by waiting
for it is taken for done once a later one of the rank is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from ddiag.model.incident import FLIGHT, FLIGHT_STATUS
from ddiag.model.naming import dtype_bytes

NONE_YET = -1
_POINT_TO_POINT = ("send", "recv")
_STATES = {"open": "started", "issued": "started", "failed": "started", "done": "completed"}
"""A call that failed never completed."""


def flight_rows(one: dict[str, Any], frame: str | None) -> Iterator[dict[str, Any]]:
    """Rows of ``flight`` of one rank of a capture; *frame* is where its main thread is in the user's code."""
    everything = (call for group in one["groups"] for call in group["calls"])
    last_done = max((call["enqueue_ns"] for call in everything if call["state"] == "done"), default=0)
    for group in one["groups"]:
        for call in group["calls"]:
            state = _state(call, last_done)
            yield {
                "rank": one["rank"],
                "group": group["name"],
                "call": "p2p" if call["op"] in _POINT_TO_POINT else "coll",
                "op": call["op"],
                "seq": call["seq"] if call["seq"] > 0 else None,
                "peer": call["peer"] if call["op"] in _POINT_TO_POINT else None,
                "state": state,
                "numel_in": _elements(call["bytes_in"], call["dtype"]),
                "numel_out": _elements(call["bytes_out"], call["dtype"]),
                "dtype": call["dtype"],
                "created_ns": call["enqueue_ns"],
                "started_ns": call["enqueue_ns"],
                "completed_ns": call["end_ns"] if state == "completed" else None,
                "frame": frame if state != "completed" else None,
            }


def _state(call: dict[str, Any], last_done: int) -> str:
    if not call["end_unknown"] or call["state"] == "done":
        return _STATES[call["state"]]
    return "completed" if call["enqueue_ns"] < last_done else "scheduled"


def _elements(size: int, dtype: str | None) -> int | None:
    """Of a barrier none; the bytes themselves where the type is unknown: what is compared are equal calls."""
    if dtype is None:
        return size or None
    return size // (dtype_bytes(dtype) or 1)


def status_rows(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of ``flight_status`` of one rank of a capture."""
    for group in one["groups"]:
        numbers = [call["seq"] for call in group["calls"] if call["op"] not in _POINT_TO_POINT and call["seq"] > 0]
        enqueued = group["last_enqueued"]
        yield {
            "rank": one["rank"],
            "group": group["name"],
            "desc": group["desc"],
            "ranks": group["ranks"] or None,
            "last_enqueued": NONE_YET if enqueued is None and group["known"] else enqueued,
            "last_started": None,
            "last_completed": group["last_completed"],
            "oldest_kept": min(numbers, default=None) if group["cut"] else None,
            "origin": "ring",
        }


def flight_table(rows: Sequence[dict[str, Any]] | Iterator[dict[str, Any]]) -> pl.DataFrame:
    return FLIGHT.conform(pl.DataFrame(list(rows), schema=FLIGHT.schema, strict=False, orient="row"))


def status_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    return FLIGHT_STATUS.conform(pl.DataFrame(list(rows), schema=FLIGHT_STATUS.schema, strict=False, orient="row"))


def inferred(flight: pl.DataFrame, status: pl.DataFrame) -> pl.DataFrame:
    """*flight* with calls whose end nobody sees taken for done where what is known of the groups suggests it.

    Where some member has not issued what others have, that is what they wait for, and what all have issued is over.
    Where all have issued the same, each rank's newest call is what it may wait in: only a device can tell.
    """
    if "scheduled" not in flight["state"]:
        return flight
    reach = status.filter(pl.col("origin") == "ring", pl.col("last_enqueued").is_not_null())
    both = reach.group_by("group").agg(
        pl.col("last_enqueued").min().alias("all_issued"), pl.col("last_enqueued").max().alias("newest")
    )
    if (both["newest"] > both["all_issued"]).any():
        over = (pl.col("seq") <= pl.col("all_issued")).fill_null(value=False)
    else:
        over = pl.col("created_ns") < pl.col("created_ns").max().over("rank")
    joined = flight.join(both, on="group", how="left", maintain_order="left")
    done = (pl.col("state") == "scheduled") & (pl.col("call") == "coll") & over
    return FLIGHT.conform(
        joined.with_columns(pl.when(done).then(pl.lit("completed")).otherwise("state").alias("state"))
    )
