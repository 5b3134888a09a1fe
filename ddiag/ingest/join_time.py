"""Logs of many files and hosts on one clock: years, zones and skew that the lines do not print.

A file's times are kept as they are wherever they fit the others'. Otherwise the smallest change that makes the ends of
the logs meet is taken (a job's logs end together), and said in a note; what cannot be placed is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median

import polars as pl

from ddiag.model.incident import BOOT, EPOCH, LOCAL, UNDATED, YEARLESS

SECOND_NS = 10**9
MINUTE_NS, HOUR_NS, DAY_NS = 60 * SECOND_NS, 3600 * SECOND_NS, 86_400 * SECOND_NS
NEAR_NS = 35 * MINUTE_NS
"""Ends this close are of one clock: ranks give up to half an hour apart (the longer of the default timeouts)."""
ZONE_STEPS_NS = (HOUR_NS, HOUR_NS // 2)
"""Most zones are whole hours apart; half hours are tried when those do not meet."""
MEETS_NS = 14 * MINUTE_NS
"""How well the ends must meet for a zone to be believed."""
WIDEST_ZONES_NS = 26 * HOUR_NS
LEAST_SKEW_NS = 20 * SECOND_NS
"""Watchdogs look every second or so and calls begin apart: less is no skew."""
LEAST_COMMON = 2
"""Timeouts of one call on two hosts that must agree about a skew."""
_SHARED = ("group", "seq", "op", "numel_in")


@dataclass(frozen=True)
class OnOneClock:
    """Events with comparable times; what cannot be compared has none."""

    events: pl.DataFrame
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Stream:
    """The events of one file that print their time in one way."""

    file: str
    clock: str
    first_ns: int
    last_ns: int


def on_one_clock(events: pl.DataFrame) -> OnOneClock:
    """Bring ``log_events`` to one clock, in its order. Times since boot cannot be placed and are dropped."""
    dated = events.with_columns(
        pl.when(pl.col("clock") == BOOT).then(None).otherwise(pl.col("ts_ns")).alias("ts_ns"),
        pl.col("source").str.replace(r":\d+$", "").alias("_file"),
        pl.col("clock").fill_null(UNDATED),
    )
    streams = _streams(dated)
    shifts, notes = _shifts(streams)
    moved = _moved(dated, shifts)
    moved, skews = _without_skew(moved)
    known = any(stream.clock in (EPOCH, LOCAL) for stream in streams)
    if known:
        comparable = pl.col("ts_ns").is_not_null() & (pl.col("clock") == YEARLESS)
        moved = moved.with_columns(pl.when(comparable).then(pl.lit(LOCAL)).otherwise(pl.col("clock")).alias("clock"))
    ordered = moved.sort("ts_ns", maintain_order=True, nulls_last=True).drop("_file")
    return OnOneClock(ordered, (*notes, *skews))


def _streams(events: pl.DataFrame) -> list[_Stream]:
    found = (
        events.filter(pl.col("ts_ns").is_not_null())
        .group_by("_file", "clock", maintain_order=True)
        .agg(pl.col("ts_ns").min().alias("first"), pl.col("ts_ns").max().alias("last"), pl.len().alias("n"))
        .sort("n", descending=True, maintain_order=True)
    )
    return [_Stream(row[0], row[1], row[2], row[3]) for row in found.iter_rows()]


def _shifts(streams: list[_Stream]) -> tuple[dict[tuple[str, str], int], list[str]]:
    """(file, clock) -> ns to add; and what was assumed."""
    shifts: dict[tuple[str, str], int] = {}
    notes: list[str] = []
    reference = _reference(streams)
    for stream in streams:
        shift = 0
        if reference is not None and stream.clock == YEARLESS and reference.clock != YEARLESS:
            shift = _year_shift(stream.last_ns, reference.last_ns)
        if reference is not None and stream.clock != EPOCH and stream is not reference:
            zone = _zone_shift(stream, shift, reference)
            if zone is None:
                notes.append(f"{stream.file}: its times lie far from the other files' and may be of another day")
            elif zone:
                notes.append(
                    f"{stream.file}: times moved by {_hours(zone)} (no zone is printed; its end then meets the others')"
                )
                shift += zone
        shifts[stream.file, stream.clock] = shift
    return shifts, notes


def _reference(streams: list[_Stream]) -> _Stream | None:
    """Whose clock is everybody's: one with a zone, else one with a date, else the one with most lines."""
    for clock in (EPOCH, LOCAL, YEARLESS):
        found = [stream for stream in streams if stream.clock == clock]
        if found:
            return found[0]
    return None


def _year_shift(printed_ns: int, near_ns: int) -> int:
    """Ns from the reader's year to the one that puts *printed_ns* nearest to *near_ns*."""
    moment = datetime.fromtimestamp(printed_ns / SECOND_NS, tz=timezone.utc)
    year = datetime.fromtimestamp(near_ns / SECOND_NS, tz=timezone.utc).year
    choices = []
    for candidate in (year - 1, year, year + 1):
        try:
            placed = moment.replace(year=candidate)
        except ValueError:  # 29 February
            continue
        choices.append(round((placed - moment).total_seconds()) * SECOND_NS)
    return min(choices, key=lambda shift: abs(printed_ns + shift - near_ns), default=0)


def _zone_shift(stream: _Stream, shift: int, reference: _Stream) -> int | None:
    """0 when the times fit, the shift between zones when one makes the ends meet, None when nothing does."""
    first, last = stream.first_ns + shift, stream.last_ns + shift
    apart = reference.last_ns - last
    if abs(apart) <= NEAR_NS or (first <= reference.last_ns and last >= reference.first_ns):
        return 0
    for step in ZONE_STEPS_NS:
        zone = round(apart / step) * step
        if abs(zone) <= WIDEST_ZONES_NS and abs(apart - zone) <= MEETS_NS:
            return zone
    return None


def _hours(shift_ns: int) -> str:
    minutes = round(abs(shift_ns) / MINUTE_NS)
    return f"{'+' if shift_ns > 0 else '-'}{minutes // 60}:{minutes % 60:02d} h"


def _moved(events: pl.DataFrame, shifts: Mapping[tuple[str, str], int]) -> pl.DataFrame:
    table = pl.DataFrame(
        [{"_file": file, "clock": clock, "_shift": shift} for (file, clock), shift in shifts.items()],
        schema={"_file": pl.String, "clock": pl.String, "_shift": pl.Int64},
    )
    joined = events.join(table, on=["_file", "clock"], how="left", maintain_order="left")
    return joined.with_columns(pl.col("ts_ns") + pl.col("_shift").fill_null(0)).drop("_shift")


def _without_skew(events: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Hosts whose clock runs ahead or behind, told by the same call timing out everywhere at once."""
    skews = dict(_skews(events))
    if not skews:
        return events, []
    table = pl.DataFrame(
        {"host": list(skews), "_skew": [skew for skew, _ in skews.values()]},
        schema={"host": pl.String, "_skew": pl.Int64},
    )
    corrected = events.join(table, on="host", how="left", maintain_order="left")
    corrected = corrected.with_columns(pl.col("ts_ns") - pl.col("_skew").fill_null(0)).drop("_skew")
    notes = [
        f"clock of {host}: {abs(skew) / SECOND_NS:.0f} s {'ahead of' if skew > 0 else 'behind'} the other hosts', "
        f"from {count} calls that timed out on all of them; its times are corrected"
        for host, (skew, count) in skews.items()
    ]
    return corrected, notes


def _skews(events: pl.DataFrame) -> Iterator[tuple[str, tuple[int, int]]]:
    timeouts = events.filter(
        (pl.col("kind") == "c10d.watchdog_timeout") & pl.col("ts_ns").is_not_null() & pl.col("host").is_not_null()
    )
    if timeouts["host"].n_unique() < 2:
        return
    keys = [pl.col("fields").str.json_path_match(f"$.{name}").alias(name) for name in _SHARED]
    calls = timeouts.with_columns(*keys).group_by(*_SHARED, "host").agg(pl.col("ts_ns").median().alias("at"))
    usual = calls.group_by(*_SHARED).agg(pl.col("at").median().alias("usual"), pl.len().alias("hosts"))
    shared = calls.join(usual.filter(pl.col("hosts") > 1), on=list(_SHARED), nulls_equal=True)
    apart: dict[str, list[float]] = {}
    for host, at, middle in shared.select("host", "at", "usual").iter_rows():
        apart.setdefault(host, []).append(at - middle)
    for host, found in sorted(apart.items()):
        skew = median(found)
        consistent = all(abs(one - skew) < LEAST_SKEW_NS / 2 for one in found)
        if len(found) >= LEAST_COMMON and consistent and abs(skew) >= LEAST_SKEW_NS:
            yield host, (round(skew), len(found))
