"""Who left the common program: ranks in one role issue the same calls in one order, but for the one that does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, zip_longest

import polars as pl

from ddiag.analysis.hang.positions import Positions

MOST_COMPARED = 64
"""Ranks whose orders are compared with each other."""
MOST_CALLS = 3000
"""Last calls of each rank that are compared."""
FEWEST_ALIKE, FEWEST_ACROSS = 2, 6
"""Calls in the same order before a difference counts, for ranks of one role and of different ones."""
MOST_ODD = 0.25
"""A larger share of the ranks has not departed from the others."""


def departed(flight: pl.DataFrame, place: Positions, suspects: Iterable[int]) -> tuple[int, ...]:
    """Ranks whose order of calls differs late from that of more ranks than it agrees with; *suspects* come first."""
    chosen = list(dict.fromkeys([*sorted(set(suspects) & place.dumps), *sorted(place.dumps)]))[:MOST_COMPARED]
    orders = _orders(flight.filter(pl.col("rank").is_in(chosen)), place)
    alike = dict.fromkeys(orders, 0)
    unlike = dict.fromkeys(orders, 0)
    roles = _roles(flight, place)
    for one, other in combinations(sorted(orders), 2):
        same = _same_order(orders[one], orders[other], one_role=roles.get(one) == roles.get(other))
        for rank in (one, other):
            alike[rank] += same is True
            unlike[rank] += same is False
    odd = tuple(rank for rank in sorted(orders) if unlike[rank] >= 2 and unlike[rank] > alike[rank])
    return odd if len(odd) <= max(1, MOST_ODD * len(orders)) else ()


def _roles(flight: pl.DataFrame, place: Positions) -> dict[int, list[tuple[str, int]]]:
    """rank -> its positions in groups that send and receive: stages of a pipeline run different programs."""
    roles: dict[int, list[tuple[str, int]]] = {}
    for group in sorted(flight.filter(pl.col("call") == "p2p")["group"].unique()):
        for position, rank in enumerate(place.members[group]):
            roles.setdefault(rank, []).append((place.desc.get(group, ""), position))
    return roles


def _orders(flight: pl.DataFrame, place: Positions) -> dict[int, list[int]]:
    """rank -> its calls in the order issued, each as a number that is the same for the same place of the program."""
    desc = pl.DataFrame({"group": list(place.desc), "word": list(place.desc.values())})
    kind = pl.when(pl.col("call") == "p2p").then(pl.col("op")).otherwise(pl.lit("coll"))
    keyed = flight.join(desc, on="group", how="left", maintain_order="left").select(
        "rank", pl.struct(pl.col("word"), kind.alias("kind"), pl.col("seq")).hash().alias("key")
    )
    rows = keyed.group_by("rank", maintain_order=True).agg(pl.col("key").tail(MOST_CALLS))
    return {rank: keys for rank, keys in rows.iter_rows() if rank is not None}


def _same_order(first: Sequence[int], second: Sequence[int], *, one_role: bool) -> bool | None:
    """Whether two ranks issued the same calls in one order between the first and the last that both have issued.

    None when that does not tell: too little in common, or different roles that differ from the start.
    """
    common = set(first) & set(second)
    ours, theirs = _between(first, common), _between(second, common)
    if len(common) < max(1, min(len(first), len(second))) // 2:
        return None
    differs = next((at for at, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b), None)
    if differs is None:
        return True
    across = max(FEWEST_ACROSS, min(len(ours), len(theirs)) // 3)
    return False if differs >= (FEWEST_ALIKE if one_role else across) else None


def _between(keys: Sequence[int], common: set[int]) -> Sequence[int]:
    """From the first to the last of *keys* that is *common*."""
    places = [at for at, key in enumerate(keys) if key in common]
    return keys[places[0] : places[-1] + 1] if places else ()
