"""Do all members of a group call the same thing? The majority is right, whoever it is; a tie decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl

Signature: TypeAlias = tuple[str, int | None, str]
"""(op, elements that all members must agree on, element types)."""
IN_SIZED = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "gather", "barrier", "all_reduce_coalesced")
OUT_SIZED = ("all_gather", "scatter")
MOST_SHOWN = 4
MOST_BEFORE = 32
"""Calls that are looked back to tell what usually comes next."""


@dataclass(frozen=True)
class Mismatch:
    """Calls of one group with one sequence number that differ."""

    group: str
    seq: int
    odd: tuple[int, ...]
    """The minority; empty when no side has a majority."""
    signatures: Mapping[int, Signature]
    """rank -> what it called."""
    open: bool
    """Some member has not completed it."""

    @property
    def usual(self) -> Signature:
        """What most ranks called."""
        return Counter(self.signatures.values()).most_common(1)[0][0]

    @property
    def words(self) -> str:
        """``all_reduce of 1,024 elements (float) on 7 ranks, of 512 on rank 3``."""
        sides = sorted(_sides(self.signatures).items(), key=lambda item: (-len(item[1]), item[1]))
        types = len({signature[2] for signature, _ in sides}) > 1
        shown = [f"{say(signature, with_type=types)} on {_who(ranks)}" for signature, ranks in sides[:MOST_SHOWN]]
        return ", ".join([*shown, *([f"{len(sides) - MOST_SHOWN} more kinds"] if len(sides) > MOST_SHOWN else [])])


def say(signature: Signature, *, with_type: bool = False) -> str:
    op, size, dtype = signature
    elements = f" of {size:,} {'element' if size == 1 else 'elements'}" if size is not None else ""
    return f"{op}{elements}" + (f" ({dtype})" if with_type and dtype else "")


def _who(ranks: Sequence[int]) -> str:
    if len(ranks) > 3:
        return f"{len(ranks):,} ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _sides(signatures: Mapping[int, Signature]) -> dict[Signature, list[int]]:
    sides: dict[Signature, list[int]] = {}
    for rank in sorted(signatures):
        sides.setdefault(signatures[rank], []).append(rank)
    return sides


def agreed_size() -> pl.Expr:
    """The number of elements that must be equal on all members, by the rule of the operation."""
    return (
        pl.when(pl.col("op").is_in(IN_SIZED))
        .then(pl.col("numel_in"))
        .when(pl.col("op").is_in(OUT_SIZED))
        .then(pl.col("numel_out"))
        .otherwise(None)
    )


def with_size(flight: pl.DataFrame) -> pl.DataFrame:
    """Collectives of *flight* with the column ``size`` that members must agree on."""
    return flight.filter(pl.col("call") == "coll").with_columns(agreed_size().alias("size"))


def mismatches(calls: pl.DataFrame, desc: Mapping[str, str]) -> list[Mismatch]:
    """The first disagreement of each group in *calls* (see :func:`with_size`): those still open first."""
    kinds = calls.group_by("group", "seq").agg(
        pl.col("op").n_unique().alias("ops"),
        pl.col("size").drop_nulls().n_unique().alias("sizes"),
        pl.col("dtype").drop_nulls().n_unique().alias("types"),
        pl.col("created_ns").min().alias("first_ns"),
        (pl.col("state") != "completed").any().alias("open"),
    )
    odd = kinds.filter((pl.col("ops") > 1) | (pl.col("sizes") > 1) | (pl.col("types") > 1))
    if odd.is_empty():
        return []
    odd = odd.sort("seq").unique("group", keep="first", maintain_order=True)
    odd = odd.sort(~pl.col("open"), "first_ns", "group")
    found = []
    for group, seq, is_open in odd.select("group", "seq", "open").iter_rows():
        signatures = signatures_at(calls, group, seq)
        others = [*siblings_at(calls, group, seq, desc), *_followers(calls, group, seq)]
        found.append(Mismatch(group, seq, vote(signatures, others), signatures, is_open))
    return found


_COLUMNS = ("op", "size", "dtype")


def signatures_at(calls: pl.DataFrame, group: str, seq: int) -> dict[int, Signature]:
    """rank -> what it called there."""
    at = calls.filter((pl.col("group") == group) & (pl.col("seq") == seq))
    return {rank: (op, size, dtype or "") for rank, op, size, dtype in at.select("rank", *_COLUMNS).iter_rows()}


def sibling_groups(group: str, desc: Mapping[str, str]) -> list[str]:
    """Other groups of the same description: they do the same work in other places of the job."""
    word = desc.get(group, "")
    if word in ("", "undefined", "default_pg"):
        return []
    return [other for other, text in desc.items() if text == word and other != group]


def siblings_at(calls: pl.DataFrame, group: str, seq: int, desc: Mapping[str, str]) -> list[Signature]:
    """What the sibling groups called at the same number: they decide a tie."""
    same = sibling_groups(group, desc)
    rows = calls.filter((pl.col("seq") == seq) & pl.col("group").is_in(same)).select(*_COLUMNS)
    return [(op, size, dtype or "") for op, size, dtype in rows.iter_rows()]


def _followers(calls: pl.DataFrame, group: str, seq: int) -> list[Signature]:
    """What this group has called before after the calls before *seq*: training repeats itself.

    The longest run of calls before it that has occurred earlier counts.
    """
    rows = calls.filter((pl.col("group") == group) & (pl.col("seq") < seq)).unique(["seq"], keep="first").sort("seq")
    past = [(op, size, dtype or "") for op, size, dtype in rows.select(*_COLUMNS).iter_rows()]
    for length in range(min(MOST_BEFORE, len(past) - 1), 0, -1):
        before = past[-length:]
        found = [past[end] for end in range(length, len(past)) if past[end - length : end] == before]
        if found:
            return found
    return []


def vote(signatures: Mapping[int, Signature], others: Iterable[Signature] = ()) -> tuple[int, ...]:
    """Ranks that called something else than the majority; empty when there is none.

    *others* (sibling groups, earlier steps) decide a tie when they know exactly one of its sides.
    """
    counts = Counter(signatures.values())
    ranked = counts.most_common()
    if len(ranked) < 2:
        return ()
    usual = ranked[0][0]
    if ranked[0][1] == ranked[1][1]:
        seen = Counter(others)
        known = [signature for signature in counts if seen[signature]]
        if len(known) != 1 or counts[known[0]] < ranked[0][1]:
            return ()
        usual = known[0]
    return tuple(sorted(rank for rank, signature in signatures.items() if signature != usual))


def unlike_siblings(calls: pl.DataFrame, group: str, seq: int, desc: Mapping[str, str]) -> Mismatch | None:
    """All members seen agree, but every sibling group called something else there, and this call is new here."""
    signatures = signatures_at(calls, group, seq)
    theirs = siblings_at(calls, group, seq, desc)
    if len(set(signatures.values())) != 1 or len(set(theirs)) != 1:
        return None
    ours = next(iter(signatures.values()))
    if ours == theirs[0]:
        return None
    op, size, dtype = ours
    earlier = calls.filter((pl.col("group") == group) & (pl.col("seq") < seq))
    same = (pl.col("op") == op) & pl.col("size").eq_missing(size) & pl.col("dtype").eq_missing(dtype or None)
    seen = earlier.filter(same)
    if not seen.is_empty() or earlier.is_empty():
        return None
    return Mismatch(group, seq, tuple(sorted(signatures)), {**signatures, -1: theirs[0]}, open=True)
