"""How far each rank came in each of its process groups, from Flight Recorder dumps or our own rings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import polars as pl

Node: TypeAlias = tuple[str, str, int, int]
"""What ranks wait in: ``("coll", group, seq, -1)`` or ``("p2p", group, source, target)``."""
Pair: TypeAlias = tuple[str, int, int]
COMPLETED, STARTED, SCHEDULED = "completed", "started", "scheduled"
ABSENT, EVICTED, NO_DUMP = "absent", "evicted", "no-dump"
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Operations that end on one rank only when every rank has taken part."""


@dataclass(frozen=True)
class Reach:
    """What a rank issued in one group, in sequence numbers of collectives."""

    enqueued: int
    """-1: none."""
    pending: int | None
    """The first one that has not completed."""


@dataclass(frozen=True)
class Positions:
    """Every rank's place. A rank in ``members`` without dump is silent, not absent."""

    dumps: frozenset[int]
    members: Mapping[str, tuple[int, ...]]
    desc: Mapping[str, str]
    reach: Mapping[tuple[int, str], Reach]
    fronts: Mapping[int, Node]
    """The earliest call of each rank that has not completed: what keeps it from going on."""
    front_rows: pl.DataFrame
    """The entries of ``fronts``, one row per rank."""
    pending: pl.DataFrame
    """All entries that have not completed, in the order in which each rank issued them."""
    wrapped: frozenset[int]
    """Ranks whose ring has lost entries."""
    last_frame: Mapping[int, str] = field(default_factory=dict)
    """Ranks that wait nowhere -> line of code of the last call they issued."""
    sends: Mapping[Pair, int] = field(default_factory=dict)
    """(group, source, target) -> sends that the source issued and that are not known to be consumed."""
    recvs: Mapping[Pair, int] = field(default_factory=dict)

    def state(self, rank: int, group: str, seq: int) -> str:
        """completed, scheduled (or started), absent, evicted or no-dump, for a collective."""
        if rank not in self.dumps:
            return NO_DUMP
        found = self.reach.get((rank, group))
        if found is None:
            return EVICTED if rank in self.wrapped else ABSENT
        if found.enqueued < seq:
            return ABSENT
        return COMPLETED if found.pending is None or found.pending > seq else SCHEDULED


def positions(flight: pl.DataFrame, status: pl.DataFrame) -> Positions:
    """Read the tables ``flight`` and ``flight_status`` (rows of dumps and rings) in one pass each."""
    flight = flight.with_row_index("place")
    members, desc = _groups(flight, status)
    pending = _pending(flight)
    first = pending.unique("rank", keep="first", maintain_order=True)
    sends, recvs = _pairs(flight, pending, status)
    dumps = {*flight["rank"].unique().drop_nulls(), *status["rank"].unique().drop_nulls()}
    return Positions(
        dumps=frozenset(dumps),
        members=members,
        desc=desc,
        reach=_reach(flight, status),
        fronts={row["rank"]: node_of(row) for row in first.iter_rows(named=True)},
        front_rows=first,
        pending=pending,
        wrapped=frozenset(status.filter(pl.col("oldest_kept").is_not_null())["rank"].unique().drop_nulls()),
        last_frame=_last_frames(flight, first["rank"]),
        sends=sends,
        recvs=recvs,
    )


def _last_frames(flight: pl.DataFrame, waiting: pl.Series) -> dict[int, str]:
    others = flight.filter(~pl.col("rank").is_in(waiting.to_list()) & pl.col("frame").is_not_null())
    return dict(others.group_by("rank").agg(pl.col("frame").last()).iter_rows())


def node_of(row: Mapping[str, object]) -> Node:
    """The node that an entry waits in."""
    rank, peer, seq = row["rank"], row["peer"], row["seq"]
    if row["call"] == "p2p" and isinstance(rank, int) and isinstance(peer, int):
        ends = (rank, peer) if row["op"] == "send" else (peer, rank)
        return ("p2p", str(row["group"]), *ends)
    return ("coll", str(row["group"]), seq if isinstance(seq, int) else -1, -1)


def _pending(flight: pl.DataFrame) -> pl.DataFrame:
    """Unfinished entries by rank in the order issued; parts of a coalesced call stand for the call where they name
    their peers."""
    unfinished = flight.filter(pl.col("state") != COMPLETED)
    with_peers = unfinished.filter(pl.col("peer").is_not_null()).select("rank", "group").unique()
    calls = unfinished.filter(pl.col("call") == "coalesced").join(with_peers, on=["rank", "group"], how="semi")
    kept = unfinished.join(calls.select("place"), on="place", how="anti")
    return kept.sort("rank", "created_ns", "place", nulls_last=False)


def _groups(flight: pl.DataFrame, status: pl.DataFrame) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Members of each group, as configured or else as seen; and its description."""
    members: dict[str, tuple[int, ...]] = {}
    desc: dict[str, str] = {}
    for group, ranks, text in status.select("group", "ranks", "desc").unique(maintain_order=True).iter_rows():
        if ranks:
            members[group] = tuple(sorted(ranks))
        desc[group] = desc.get(group) or text or ""
    seen = flight.group_by("group").agg(pl.col("rank").unique().sort())
    for group, ranks in seen.iter_rows():
        members.setdefault(group, tuple(ranks))
        desc.setdefault(group, "")
    return members, desc


def _reach(flight: pl.DataFrame, status: pl.DataFrame) -> dict[tuple[int, str], Reach]:
    """From the entries, and from the recorded status where it counts the same thing."""
    collectives = flight.filter(pl.col("call") == "coll")
    seen = collectives.group_by("rank", "group").agg(
        pl.col("seq").max().alias("last"), pl.col("seq").filter(pl.col("state") != COMPLETED).min().alias("open")
    )
    said = _comparable_status(flight, status, seen)
    both = said.join(seen, on=["rank", "group"], how="full", coalesce=True)
    return {(rank, group): one for rank, group, one in _reaches(both)}


def _reaches(both: pl.DataFrame) -> Iterator[tuple[int, str, Reach]]:
    columns = both.select("rank", "group", "last_enqueued", "last_completed", "last", "open")
    for rank, group, enqueued, done, last, open_seq in columns.iter_rows():
        known = [number for number in (enqueued, last) if number is not None]
        if not known:
            continue
        pending = open_seq
        if pending is None and done is not None and max(known) > done:
            pending = done + 1
        yield rank, group, Reach(max(known), pending)


def _comparable_status(flight: pl.DataFrame, status: pl.DataFrame, seen: pl.DataFrame) -> pl.DataFrame:
    """Recorded status without the groups where it counts sends and receives among the collectives."""
    mixed = set(flight.filter(pl.col("call") != "coll")["group"].unique())
    said = status.select("rank", "group", "last_enqueued", "last_completed")
    said = said.group_by("rank", "group", maintain_order=True).agg(
        pl.col("last_enqueued").max(), pl.col("last_completed").max()
    )
    both = said.join(seen, on=["rank", "group"])
    mixed |= set(both.filter(pl.col("last_enqueued") != pl.col("last"))["group"])
    known = said.filter(~pl.col("group").is_in(list(mixed)) & pl.col("last_enqueued").is_not_null())
    return known.filter(~((pl.col("last_enqueued") < 0) & (pl.col("last_completed") > 0)))


def _pairs(
    flight: pl.DataFrame, pending: pl.DataFrame, status: pl.DataFrame
) -> tuple[dict[Pair, int], dict[Pair, int]]:
    """Sends and receives of each pair that may still meet a partner.

    With whole histories on both sides: issued there minus completed here. Otherwise the unfinished ones.
    """
    wrapped = set(status.filter(pl.col("oldest_kept").is_not_null())["rank"])
    open_sends, open_recvs = _counts(pending)
    if not open_sends and not open_recvs:
        return {}, {}
    all_sends, all_recvs = _counts(flight)
    done_sends, done_recvs = _counts(flight.filter(pl.col("state") == COMPLETED))
    sends, recvs = dict(open_sends), dict(open_recvs)
    for pair in {*open_sends, *open_recvs}:
        if wrapped.isdisjoint(pair[1:]):
            sends[pair] = all_sends.get(pair, 0) - done_recvs.get(pair, 0)
            recvs[pair] = all_recvs.get(pair, 0) - done_sends.get(pair, 0)
    return sends, recvs


def _counts(rows: pl.DataFrame) -> tuple[dict[Pair, int], dict[Pair, int]]:
    found: tuple[dict[Pair, int], dict[Pair, int]] = (defaultdict(int), defaultdict(int))
    both = rows.filter((pl.col("call") == "p2p") & pl.col("peer").is_not_null())
    for group, rank, peer, op, count in both.group_by("group", "rank", "peer", "op").len().iter_rows():
        if op == "send":
            found[0][group, rank, peer] += count
        elif op == "recv":
            found[1][group, peer, rank] += count
    return dict(found[0]), dict(found[1])
