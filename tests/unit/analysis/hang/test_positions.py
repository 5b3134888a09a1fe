"""Positions of ranks in their groups, and who waits for whom."""

from __future__ import annotations

from typing import Any

import polars as pl

from ddiag.analysis.hang.dumps import conclude
from ddiag.analysis.hang.graph import certain, circles, endings, waits
from ddiag.analysis.hang.positions import Reach, positions
from ddiag.model.incident import FLIGHT, FLIGHT_STATUS


def flight(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"group": "0", "call": "coll", "op": "all_reduce", "state": "completed", "numel_in": 8, "numel_out": 8}
    made = [usual | {"created_ns": at} | row for at, row in enumerate(rows)]
    return FLIGHT.conform(pl.DataFrame(made, schema_overrides={"peer": pl.Int32} if "peer" in rows[0] else None))


def status(ranks: int, **more: list[Any]) -> pl.DataFrame:
    rows = {"rank": list(range(ranks)), "group": ["0"] * ranks, "ranks": [list(range(ranks))] * ranks}
    return FLIGHT_STATUS.conform(pl.DataFrame(rows | {"origin": ["flight"] * ranks} | more))


def test_a_rank_short_of_a_call_is_absent_and_one_with_a_later_call_is_not() -> None:
    place = positions(flight({"rank": 0, "seq": 4}, {"rank": 1, "seq": 3}), status(3))
    assert [place.state(rank, "0", 4) for rank in (0, 1)] == ["completed", "absent"]


def test_a_ring_that_lost_the_place_is_evicted_and_not_absent() -> None:
    place = positions(flight({"rank": 0, "seq": 900, "state": "started"}), status(2, oldest_kept=[None, 5]))
    assert place.state(1, "0", 900) == "evicted"


def test_a_rank_without_a_dump_is_neither() -> None:
    known = status(1).with_columns(ranks=pl.Series([[0, 1]], dtype=pl.List(pl.Int32)))
    place = positions(flight({"rank": 0, "seq": 4, "state": "started"}), known)
    assert place.state(1, "0", 4) == "no-dump"


def test_status_that_counts_sends_too_is_not_compared_with_collectives() -> None:
    rows = flight(
        {"rank": 0, "seq": 7, "peer": None, "state": "started"},
        {"rank": 1, "seq": 1, "call": "p2p", "op": "send", "peer": 0},
    )
    place = positions(rows, status(2, last_enqueued=[9000, 9000], last_completed=[8999, 9000]))
    assert place.reach[0, "0"] == Reach(7, 7)
    assert (1, "0") not in place.reach


def test_the_earliest_open_call_is_what_a_rank_waits_in() -> None:
    rows = flight({"rank": 0, "seq": 2, "state": "started"}, {"rank": 0, "seq": 3, "state": "scheduled"})
    assert positions(rows, status(1)).fronts == {0: ("coll", "0", 2, -1)}


def test_a_chain_of_waiting_ends_at_the_rank_that_waits_nowhere() -> None:
    rows = flight(
        {"rank": 0, "group": "a", "seq": 1, "state": "started"},
        {"rank": 1, "group": "b", "seq": 1, "state": "started"},
        {"rank": 2, "group": "c", "seq": 9},
    )
    members = FLIGHT_STATUS.conform(
        pl.DataFrame({"rank": [0, 1, 2], "group": ["a", "b", "c"], "ranks": [[0, 1], [1, 2], [2]]})
    )
    place = positions(rows, members)
    (end,) = endings(place.fronts, certain(waits(place, place.fronts)))
    assert (end.ranks, sorted(end.blocked)) == ((2,), [0, 1])


def test_a_circle_counts_even_where_somebody_in_it_also_waits_for_an_unknown_rank() -> None:
    rows = flight(
        {"rank": 0, "group": "a", "seq": 1, "state": "started"},
        {"rank": 1, "group": "b", "seq": 1, "state": "started"},
    )
    members = FLIGHT_STATUS.conform(pl.DataFrame({"rank": [0, 1], "group": ["a", "b"], "ranks": [[0, 1, 2], [0, 1]]}))
    place = positions(rows, members)
    (circle,) = circles(place.fronts, certain(waits(place, place.fronts)))
    assert circle.ranks == (0, 1)


def test_nothing_open_is_running() -> None:
    found, _ = conclude(flight({"rank": 0, "seq": 2}, {"rank": 1, "seq": 2}), status(2))
    assert found.verdict == "running"


def test_a_receive_whose_sender_is_elsewhere_waits_for_the_sender() -> None:
    rows = flight(
        {"rank": 1, "seq": 1, "call": "p2p", "op": "recv", "peer": 0, "state": "started"},
        {"rank": 0, "seq": 1, "call": "coll", "op": "all_reduce", "peer": None},
    )
    found, _ = conclude(rows, status(2))
    assert (found.verdict, found.culprits) == ("late", (0,))
