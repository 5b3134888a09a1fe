"""Which calls belong to one communicator: the same process group on the same set of ranks.

A group *name* is not enough: names repeat for different rank sets, and traces before torch 2.3 have none. Calls whose
communicator cannot be told are left without one rather than put into the wrong one.
"""

from __future__ import annotations

import polars as pl

from ddiag.model.run import Run

UNKNOWN = "unknown"
_POINT_TO_POINT = ("send", "recv", "coalesced")
_SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Operations whose size is the same on every member, so that it may serve to recognise a call."""
_ENQUEUE_ONLY = r"^(?:nccl:|rccl:|record_param_comms|c10d::|c10d_functional::|_c10d_functional::)"
"""Host spans that end when the call has been queued, not when it has been carried out."""


def timed_calls(run: Run) -> pl.DataFrame:
    """The calls of *run* whose span is their duration, one row per rank and call, with ``row`` as identity.

    Host spans that only enqueue device work are left out: they say nothing about when data moved.
    """
    calls = run.table("collectives").with_columns(
        pl.col("group").fill_null(UNKNOWN), pl.col("op").fill_null(UNKNOWN), pl.col("source").fill_null("kernel")
    )
    enqueue_only = (pl.col("source") == "host") & pl.col("name").fill_null("").str.contains(_ENQUEUE_ONLY)
    timed = calls.filter(~enqueue_only & (pl.col("end_ns") >= pl.col("start_ns")))
    return timed.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))


def with_communicators(run: Run, calls: pl.DataFrame) -> pl.DataFrame:
    """Add ``comm`` (id; null: cannot be told or not collective), ``members`` (its size, null if unknown), ``code``.

    ``code`` recognises a call: equal on all members of the communicator that take part in it. ``group_size`` is filled
    from the group table.
    """
    calls = _with_rank_sets(run, calls)
    calls = calls.with_columns(pl.coalesce("group_size", "set_size").alias("group_size"))
    key = (
        pl.when(pl.col("op").is_in(_POINT_TO_POINT) | ((pl.col("op") == "send_recv") & (pl.col("group") != UNKNOWN)))
        .then(None)
        .when(pl.col("rank_set").is_not_null())
        .then(pl.format("{} {} set {}", "source", "group", "rank_set"))
        .when(pl.col("group") != UNKNOWN)
        .then(_whole_group_key(calls))
        .otherwise(_nameless_key(calls))
    )
    size = pl.when(pl.col("op").is_in(_SAME_SIZE)).then(pl.max_horizontal("bytes_in", "bytes_out")).fill_null(-1)
    code = pl.format("{} {} {}", "op", pl.col("dtype").fill_null(""), size.fill_null(-1))
    return calls.with_columns(
        _dense(key).alias("comm"), _dense(code).alias("code"), pl.col("group_size").alias("members")
    ).drop("rank_set", "set_size", "_line")


def _dense(key: pl.Expr) -> pl.Expr:
    """Small ids for equal text; null stays null."""
    return pl.when(key.is_not_null()).then(key.rank("dense").cast(pl.Int32))


def _with_rank_sets(run: Run, calls: pl.DataFrame) -> pl.DataFrame:
    """Add ``rank_set`` and ``set_size``: the one set of ranks that bears the group's name and holds this rank."""
    calls = calls.with_columns(_line=_stream_order(calls))
    groups = run.table("groups").filter(pl.col("ranks").list.len() > 0)
    sets = (
        groups.with_columns(pl.col("ranks").list.sort().cast(pl.List(pl.String)).list.join(",").alias("rank_set"))
        .unique(["group", "rank_set"])
        .select("group", "rank_set", pl.col("ranks").list.len().cast(pl.Int32).alias("set_size"), rank="ranks")
        .explode("rank")
        .unique(["group", "rank_set", "rank"])
    )
    ambiguous = pl.len().over("group", "rank") > 1
    sets = sets.filter(~ambiguous)
    return calls.join(sets, on=["group", "rank"], how="left", maintain_order="left")


def _whole_group_key(calls: pl.DataFrame) -> pl.Expr:
    """A named group without a list of members is one communicator only if no more ranks use the name than it has."""
    users = calls.group_by("source", "group").agg(pl.col("rank").n_unique().alias("users"), pl.col("group_size").max())
    whole = users.filter(pl.col("group_size").is_null() | (pl.col("users") <= pl.col("group_size")))
    names = whole.select(pl.format("{} {}", "source", "group")).to_series().to_list()
    name = pl.format("{} {}", "source", "group")
    return pl.when(name.is_in(names)).then(name)


def _nameless_key(calls: pl.DataFrame) -> pl.Expr:
    """Without names a communicator is known by its stream: the k-th communication stream of each rank, else its op.

    A rank that names some groups has nameless calls only by accident (issued before the capture): no communicator.
    """
    nameless = calls.filter(pl.col("group") == UNKNOWN)
    named = calls.filter(pl.col("group") != UNKNOWN)["rank"].unique().to_list()
    ops = nameless.group_by("rank", "_line").agg(pl.col("op").unique().sort().str.join(" "))
    alike = ops.group_by("_line").agg(pl.col("op").n_unique().alias("kinds"), pl.len().alias("users"))
    by_stream = bool((alike["kinds"] == 1).all()) and bool((alike["users"] == ops["rank"].n_unique()).all())
    part = pl.col("_line").cast(pl.String) if by_stream else pl.col("op")
    return pl.when(~pl.col("rank").is_in(named)).then(pl.format("{} nameless {}", "source", part))


def _stream_order(calls: pl.DataFrame) -> pl.Series:
    """For each call the ordinal of its stream among the rank's nameless communication streams, by first use."""
    first = (
        calls.filter(pl.col("group") == UNKNOWN)
        .group_by("rank", "source", "stream")
        .agg(pl.col("start_ns").min())
        .with_columns(pl.col("start_ns").rank("ordinal").over("rank", "source").alias("_line"))
    )
    keys = ["rank", "source", "stream"]
    return calls.join(first.select(*keys, "_line"), on=keys, how="left", maintain_order="left", nulls_equal=True)[
        "_line"
    ]
