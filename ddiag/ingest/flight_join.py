"""Dumps of many ranks as those of one job: every rank once, every group by a key that means one set of members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from ddiag.ingest.clues import Clues
from ddiag.ingest.flight import NAME
from ddiag.model.incident import FLIGHT, FLIGHT_STATUS

_UNKNOWN = "which rank wrote it is not known: put the rank at the end of the file's name (nccl_trace_rank_3)"
_MOST_RUNS = 3
Members = tuple[int, ...]


def settled(clues: Sequence[Clues]) -> list[Clues]:
    """*clues* with the ranks of dumps settled: unknown ones by elimination, and of several of one rank the newest."""
    dumps = [one for one in clues if one.kind == NAME]
    if not dumps:
        return list(clues)
    ranks = _ranks(dumps)
    newest: dict[int, Clues] = {}
    for one in dumps:
        rank = ranks.get(id(one))
        if rank is not None and (rank not in newest or _age(newest[rank]) < _age(one)):
            newest[rank] = one
    return [_settled(one, ranks.get(id(one)), newest) if one.kind == NAME else one for one in clues]


def _settled(one: Clues, rank: int | None, newest: Mapping[int, Clues]) -> Clues:
    if rank is None:
        return replace(one, tables={}, notes=(*one.notes, _UNKNOWN))
    if newest[rank] is not one:
        note = f"not used: {newest[rank].source.label} is a newer dump of rank {rank}"
        return replace(one, tables={}, notes=(*one.notes, note))
    if one.rank is not None:
        return one
    note = f"taken as rank {rank}: the only one of its groups without another dump"
    return replace(one, rank=rank, notes=(*one.notes, note))


def _ranks(dumps: Sequence[Clues]) -> dict[int, int]:
    """Rank by id() of the clues."""
    found = {id(one): one.rank for one in dumps if one.rank is not None}
    unknown = [one for one in dumps if one.rank is None]
    possible = {id(one): _members_of_all(one) for one in unknown}
    while True:
        taken = set(found.values())
        sure = [one for one in unknown if id(one) not in found and len(possible[id(one)] - taken) == 1]
        if not sure:
            return found
        found[id(sure[0])] = (possible[id(sure[0])] - taken).pop()


def _members_of_all(one: Clues) -> set[int]:
    """Ranks that are in every group of the dump."""
    status = one.tables.get(FLIGHT_STATUS.name)
    groups = [] if status is None else [set(ranks) for ranks in status["ranks"].drop_nulls().to_list()]
    return set.intersection(*groups) if groups else set()


def _age(one: Clues) -> tuple[int, int]:
    """When its last call was made, and how many stacks it has: of a dump as pickle and JSON only the first has any."""
    flight = one.tables.get(FLIGHT.name)
    if flight is None:
        return 0, 0
    latest = flight.select(pl.max_horizontal(pl.col("created_ns").max(), pl.col("completed_ns").max())).item()
    return int(latest or 0), flight.height - flight["frame"].null_count()


def with_group_keys(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """*tables* with the members of groups filled in where another rank knows them, and names that several groups
    share (``split_group`` gives them anew) made different: ``5[0-3]``, ``5[4-7]``."""
    status = tables.get(FLIGHT_STATUS.name)
    if status is None:
        return tables
    members = _known_members(status)
    status = _with_members(status, members)
    renamed = _renamed(status, members)
    if renamed.is_empty():
        return {**tables, FLIGHT_STATUS.name: status}
    changed = {FLIGHT_STATUS.name: _with_keys(status, renamed)}
    if FLIGHT.name in tables:
        changed[FLIGHT.name] = _with_keys(tables[FLIGHT.name], renamed)
    return {**tables, **changed}


def _known_members(status: pl.DataFrame) -> dict[str, list[Members]]:
    """Group name -> the different sets of members it stands for."""
    known: dict[str, list[Members]] = defaultdict(list)
    for name, ranks in status.select("group", "ranks").drop_nulls().unique(maintain_order=True).iter_rows():
        if tuple(sorted(ranks)) not in known[name]:
            known[name].append(tuple(sorted(ranks)))
    return known


def _with_members(status: pl.DataFrame, members: Mapping[str, list[Members]]) -> pl.DataFrame:
    """Unknown members from other ranks; of the default group, all ranks there are."""
    unknown = status.filter(pl.col("ranks").is_null()).select("rank", "group", "desc").unique(maintain_order=True)
    if unknown.is_empty():
        return status
    rows = []
    world = _world(status, members)
    for rank, group, desc in unknown.iter_rows():
        fitting = [ranks for ranks in members.get(group, ()) if rank in ranks]
        if len(fitting) == 1:
            rows.append({"rank": rank, "group": group, "_found": list(fitting[0])})
        elif not fitting and (desc == "default_pg" or group == "0"):
            rows.append({"rank": rank, "group": group, "_found": world})
    if not rows:
        return status
    found = pl.DataFrame(rows, schema={"rank": pl.Int32, "group": pl.String, "_found": pl.List(pl.Int32)})
    joined = status.join(found, on=["rank", "group"], how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("ranks", "_found").alias("ranks")).drop("_found")


def _world(status: pl.DataFrame, members: Mapping[str, list[Members]]) -> list[int]:
    highest = max((ranks[-1] for sets in members.values() for ranks in sets), default=0)
    seen = status["rank"].drop_nulls().max()
    return list(range(max(highest, seen if isinstance(seen, int) else 0) + 1))


def _renamed(status: pl.DataFrame, members: Mapping[str, list[Members]]) -> pl.DataFrame:
    """(rank, group) -> key, for names that several sets of members share."""
    rows = []
    for name, sets in members.items():
        if len(sets) > 1:
            keys = _keys(name, sets)
            own = status.filter((pl.col("group") == name) & pl.col("ranks").is_not_null())
            rows += [
                {"rank": rank, "group": name, "_key": keys[tuple(sorted(ranks))]}
                for rank, ranks in own.select("rank", "ranks").iter_rows()
            ]
    table = pl.DataFrame(rows, schema={"rank": pl.Int32, "group": pl.String, "_key": pl.String})
    return table.unique(["rank", "group"], keep="first", maintain_order=True)


def _keys(name: str, sets: Iterable[Members]) -> dict[Members, str]:
    keys: dict[Members, str] = {}
    for ranks in sets:
        key = f"{name}[{_ranges(ranks)}]"
        again = sum(other.partition("]")[0] + "]" == key for other in keys.values())
        keys[ranks] = f"{key}#{again + 1}" if again else key
    return keys


def _ranges(ranks: Members) -> str:
    """``0-3,8``; with many gaps only the first and last."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    if len(runs) > _MOST_RUNS:
        return f"{ranks[0]}…{ranks[-1]}"
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _with_keys(table: pl.DataFrame, renamed: pl.DataFrame) -> pl.DataFrame:
    joined = table.join(renamed, on=["rank", "group"], how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("_key", "group").alias("group")).drop("_key")
