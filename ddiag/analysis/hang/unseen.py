"""What is known of ranks without a dump: peers that finished later calls with them are witnesses that they came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import polars as pl

from ddiag.analysis.hang.graph import Blockers
from ddiag.analysis.hang.positions import SYNCHRONISING, Node, Positions

MOST_QUESTIONS = 4000
"""(call, unknown rank) pairs that are looked into; more would mean that hardly any dump is there."""


def with_witnesses(flight: pl.DataFrame, place: Positions, blocking: Mapping[Node, Blockers]) -> dict[Node, Blockers]:
    """*blocking* without unknown ranks that must have come.

    All ranks of a job run one program. A witness issued the same call (same description and number, in its own group)
    and after it finished another collective together with the unknown rank: so the unknown rank has issued it too.
    """
    questions = {(node, rank) for node, by in blocking.items() if node[0] == "coll" for rank in by.unknown}
    if not questions or len(questions) > MOST_QUESTIONS:
        return dict(blocking)
    shared = _groups_of({rank for _, rank in questions}, place)
    came = defaultdict(set)
    alike = Alike(flight, place)
    last = _last_finished(flight.with_row_index("place"))
    for node, rank in sorted(questions):
        issued = alike.of({"group": node[1], "seq": node[2], "call": "coll"})
        if _witnessed(rank, issued, shared[rank], last, place):
            came[node].add(rank)
    return {node: Blockers(by.certain, by.unknown - came[node]) for node, by in blocking.items()}


def _groups_of(ranks: set[int], place: Positions) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for group, members in place.members.items():
        for rank in ranks.intersection(members):
            found[rank].append(group)
    return found


def _last_finished(flight: pl.DataFrame) -> dict[tuple[int, str], int]:
    """(rank, group) -> place in its dump of the last synchronising collective that ended there."""
    done = flight.filter(
        (pl.col("call") == "coll") & (pl.col("state") == "completed") & pl.col("op").is_in(list(SYNCHRONISING))
    )
    rows = done.group_by("rank", "group").agg(pl.col("place").max())
    return {(rank, group): place for rank, group, place in rows.iter_rows()}


class Alike:
    """Finds the calls at one place of the program on all ranks, each in its own group of the same description."""

    def __init__(self, flight: pl.DataFrame, place: Positions) -> None:
        columns = ("rank", "group", "call", "op", "seq", "place")
        self._flight = flight.with_row_index("place").select(columns)
        self._place = place
        self._known: dict[tuple[object, ...], dict[int, int]] = {}

    def of(self, row: Mapping[str, object]) -> dict[int, int]:
        """rank -> place in its dump of the call like the entry *row*.

        Sends and receives count only for ranks at the same position in their group.
        """
        group = str(row["group"])
        word = self._place.desc.get(group, "")
        p2p = row["call"] == "p2p"
        position = self._place.members[group].index(_whole(row["rank"])) if p2p else -1
        key = (word or group, row["call"], row["seq"], row["op"] if p2p else "", position)
        if key not in self._known:
            groups = [other for other, text in self._place.desc.items() if text == word] if word else [group]
            self._known[key] = self._found(groups, row, position)
        return self._known[key]

    def _found(self, groups: list[str], row: Mapping[str, object], position: int) -> dict[int, int]:
        same = pl.col("group").is_in(groups) & (pl.col("seq") == row["seq"]) & (pl.col("call") == row["call"])
        if position < 0:
            return dict(self._flight.filter(same).select("rank", "place").iter_rows())
        rows = self._flight.filter(same & (pl.col("op") == row["op"])).select("rank", "group", "place")
        members = self._place.members
        return {rank: at for rank, of, at in rows.iter_rows() if members[of].index(rank) == position}


def _whole(value: object) -> int:
    return value if isinstance(value, int) else -1


def _witnessed(
    rank: int, issued: Mapping[int, int], groups: list[str], last: Mapping[tuple[int, str], int], place: Positions
) -> bool:
    for group in groups:
        for witness in place.members[group]:
            done = last.get((witness, group))
            if witness != rank and done is not None and witness in issued and done > issued[witness]:
                return True
    return False
