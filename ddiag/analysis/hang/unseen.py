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
    issued: dict[tuple[str, int], dict[int, int]] = {}
    placed = flight.with_row_index("place")
    last = _last_finished(placed)
    for node, rank in sorted(questions):
        key = (place.desc.get(node[1], ""), node[2])
        if key not in issued:
            row = {"group": node[1], "seq": node[2], "call": "coll"}
            issued[key] = like(placed, place, row)
        if _witnessed(rank, issued[key], shared[rank], last, place):
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


def like(flight: pl.DataFrame, place: Positions, row: Mapping[str, object]) -> dict[int, int]:
    """rank -> place in its dump of the call like the entry *row*, in its own group of the same description.

    Sends and receives count only for ranks at the same position in their group. *flight* has the column ``place``.
    """
    group = str(row["group"])
    word = place.desc.get(group, "")
    groups = [other for other, text in place.desc.items() if text == word] if word else [group]
    same = pl.col("group").is_in(groups) & (pl.col("seq") == row["seq"]) & (pl.col("call") == row["call"])
    if row["call"] != "p2p":
        return dict(flight.filter(same).select("rank", "place").iter_rows())
    position = place.members[group].index(_whole(row["rank"]))
    rows = flight.filter(same & (pl.col("op") == row["op"])).select("rank", "group", "place")
    found = {rank: (of, at) for rank, of, at in rows.iter_rows()}
    return {rank: at for rank, (of, at) in found.items() if place.members[of].index(rank) == position}


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
