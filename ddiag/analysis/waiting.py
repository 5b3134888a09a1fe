"""Split the duration of a matched call into waiting for the last member and moving data (algorithm D2).

In a synchronising collective nobody leaves before the last member has arrived, so the shortest duration over the
members is the transfer and the rest of each duration is waiting; no clock is needed. Whether a call does synchronise is
taken from its operation only where that is certain; elsewhere the spans themselves have to show it: all of them share
an instant and end together.
"""

from __future__ import annotations

import polars as pl

from ddiag.analysis.clock import ERROR_BARS, SYNCHRONISING, Alignment, align_calls
from ddiag.analysis.communicators import UNKNOWN

_MIN_TOLERANCE_NS = 20_000.0
"""Ends of one collective differ by some microseconds even with perfect clocks."""
_MAX_TOLERANCE_SHARE = 0.25
"""Tolerance / longest duration: with clocks worse than that, calls cannot be seen to overlap."""
_MIN_SHARE = 0.8
"""Share of a communicator's calls whose members must have been inside at once."""
_MAX_SPREAD_SHARE = 0.25
"""Spread of the ends / longest duration up to which an uncertain operation ends together."""
_ALWAYS_TOGETHER_NS = 50_000.0
"""Median spread of the ends at which calls end together however short they are."""


def split(calls: pl.DataFrame) -> tuple[pl.DataFrame, Alignment, tuple[str, ...]]:
    """Add ``wait_ms``, ``transfer_ms`` (null where not known), ``ranks_matched`` and ``matched`` to lined-up calls.

    Returns also the alignment of the clocks that was used and what could not be believed.
    """
    calls = calls.with_columns(
        pl.when(pl.col("call").is_not_null()).then(pl.len().over("call")).otherwise(1).alias("ranks_matched"),
        ((pl.col("end_ns") - pl.col("start_ns")) / 1e6).alias("dur_ms"),
        may_synchronise().alias("may"),
        _certain().alias("certain"),
    )
    calls = calls.with_columns(pl.when(pl.col("ranks_matched") > 1).then(pl.col("call")).alias("call"))
    alignment = _alignment(calls)
    calls = calls.join(_verdicts(calls, alignment), on=["comm", "op"], how="left", maintain_order="left")
    shown = pl.col("shown").fill_null(value=False)
    refused = pl.col("call").is_not_null() & pl.col("may") & ~shown & ~_by_start()
    notes = _notes(calls.filter(refused & (pl.col("certain") | (pl.col("group") == UNKNOWN))))
    calls = calls.with_columns(
        matched=pl.col("call").is_not_null() & ~(refused & (pl.col("certain") | (pl.col("group") == UNKNOWN)))
    )
    calls = _by_durations(calls, shown & pl.col("may") & pl.col("matched"))
    calls = _by_starts(calls, alignment)
    return calls.drop("may", "certain", "shown"), alignment, notes


def may_synchronise() -> pl.Expr:
    """Operations that wait for everybody, for certain or possibly (kernels whose name does not say what they do)."""
    nameless = (pl.col("group") == UNKNOWN) & pl.col("op").is_in(["send_recv", UNKNOWN])
    return pl.col("op").is_in(SYNCHRONISING) | nameless


def _certain() -> pl.Expr:
    return (pl.col("group") != UNKNOWN) & pl.col("op").is_in(SYNCHRONISING) & (pl.col("op") != "all_to_all")


def _alignment(calls: pl.DataFrame) -> Alignment:
    usable = calls.filter(pl.col("call").is_not_null() & pl.col("may"))
    certain = usable.filter("certain")
    covers_all = certain["rank"].n_unique() == usable["rank"].n_unique()
    return align_calls(certain if covers_all else usable)


def _verdicts(calls: pl.DataFrame, alignment: Alignment) -> pl.DataFrame:
    """comm, op, shown: the spans of this operation show that it synchronises (or do not contradict that it does).

    A call that was served later than it was issued was waited in from its issue on. Host threads leave up to
    milliseconds apart, and aligning by their ends blurs what is being tested: there the tolerance is one error bar,
    not three.
    """
    offset = pl.col("rank").replace_strict(dict(alignment.offset_ns), default=0, return_dtype=pl.Int64)
    begin = "issued_ns" if "issued_ns" in calls.columns else "start_ns"
    per_call = (
        calls.filter(pl.col("call").is_not_null() & pl.col("may"))
        .with_columns(start=pl.col(begin) - offset, end=pl.col("end_ns") - offset)
        .group_by("comm", "op", "call")
        .agg(
            shared=pl.col("end").min() - pl.col("start").max(),
            spread=pl.col("end").max() - pl.col("end").min(),
            longest=(pl.col("end") - pl.col("start")).max(),
            certain=pl.col("certain").all(),
            host=(pl.col("source") == "host").any(),
        )
    )
    error_ns = min(alignment.tolerance_ns, 1e12)
    bars = pl.when("host").then(error_ns / ERROR_BARS).otherwise(error_ns)
    tolerance = pl.max_horizontal(_MIN_TOLERANCE_NS, pl.min_horizontal(bars, _MAX_TOLERANCE_SHARE * pl.col("longest")))
    together = (pl.col("spread").sum() <= _MAX_SPREAD_SHARE * pl.col("longest").sum()) | (
        pl.col("spread").median() <= _ALWAYS_TOGETHER_NS
    )
    inside = (pl.col("shared") >= -tolerance).mean() >= _MIN_SHARE
    return per_call.group_by("comm", "op").agg(shown=inside & (pl.col("certain").all() | together))


def _by_durations(calls: pl.DataFrame, valid: pl.Expr) -> pl.DataFrame:
    shortest = pl.col("dur_ms").min().over("call")
    return calls.with_columns(
        transfer_ms=pl.when(valid).then(shortest), wait_ms=pl.when(valid).then(pl.col("dur_ms") - shortest)
    )


def _by_start() -> pl.Expr:
    """All-to-all with unequal parts: members stay for different times, so only the starts tell who waited."""
    return (pl.col("op") == "all_to_all") & (pl.col("group") != UNKNOWN)


def _by_starts(calls: pl.DataFrame, alignment: Alignment) -> pl.DataFrame:
    """Waiting until the last member has started, where clocks are aligned well enough to say so."""
    offset = pl.col("rank").replace_strict(dict(alignment.offset_ns), default=0, return_dtype=pl.Int64)
    start = pl.col("start_ns") - offset
    early_ns = start.max().over("call") - start
    skew_ns = start.max().over("call") - start.min().over("call")
    wait = pl.min_horizontal(early_ns / 1e6, "dur_ms")
    usable = _by_start() & pl.col("matched") & pl.col("wait_ms").is_null() & (skew_ns > alignment.tolerance_ns)
    return calls.with_columns(
        wait_ms=pl.when(usable).then(wait).otherwise("wait_ms"),
        transfer_ms=pl.when(usable).then(pl.col("dur_ms") - wait).otherwise("transfer_ms"),
    )


def _notes(refused: pl.DataFrame) -> tuple[str, ...]:
    found = refused.group_by("group", "op").agg(pl.col("call").n_unique().alias("calls")).sort("group", "op")
    return tuple(
        f"{calls} {op} call(s) of group {group}: the ranks were not inside at the same time, so they were not matched"
        for group, op, calls in found.iter_rows()
    )
