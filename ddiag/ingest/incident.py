"""The clues of many files joined with each other, and with the run that traces or a recording of the job gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from ddiag.ingest.clues import Clues
from ddiag.ingest.flight_join import settled, with_group_keys
from ddiag.ingest.join_place import hosts_of_files, short_host, short_names
from ddiag.ingest.join_time import on_one_clock
from ddiag.model.run import Coverage, InputFile, Run
from ddiag.model.tables import TABLES


def with_clues(run: Run, clues: Sequence[Clues]) -> Run:
    """*run* with the tables and the coverage of *clues*."""
    clues = _with_hosts(settled(clues))
    frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for name, table in run.tables.items():
        frames[name].append(table)
    for one in clues:
        for name, table in one.tables.items():
            conforming = table if table.schema == TABLES[name].schema else TABLES[name].conform(table)
            frames[name].append(_filled(short_names(conforming), one))
    tables = {name: parts[0] if len(parts) == 1 else pl.concat(parts, rechunk=True) for name, parts in frames.items()}
    tables = with_group_keys(tables)
    notes: tuple[str, ...] = ()
    if "log_events" in tables:
        timed = on_one_clock(tables["log_events"])
        tables["log_events"], notes = timed.events, timed.notes
    coverage = _coverage(run, clues, tables)
    return replace(
        run,
        tables={name: tables[name] for name in TABLES if name in tables},
        coverage=replace(coverage, notes=(*coverage.notes, *notes)),
    )


def _with_hosts(clues: Sequence[Clues]) -> list[Clues]:
    """One name for each host, and a host for files that are called by one."""
    short = [replace(one, host=None if one.host is None else short_host(one.host)) for one in clues]
    named = hosts_of_files(short)
    return [replace(one, host=named.get(place, one.host)) for place, one in enumerate(short)]


def _filled(table: pl.DataFrame, clues: Clues) -> pl.DataFrame:
    """What the whole file is of, for the records that do not say it."""
    known = {"rank": clues.rank, "host": clues.host}
    missing = [
        pl.col(name).fill_null(pl.lit(value))
        for name, value in known.items()
        if value is not None and name in table.columns and table[name].null_count()
    ]
    return table.with_columns(missing) if missing else table


def _coverage(run: Run, clues: Sequence[Clues], tables: dict[str, pl.DataFrame]) -> Coverage:
    seen = set(run.coverage.ranks_seen)
    for name in ("log_events", "flight_status", "stacks"):
        if name in tables:
            seen |= set(tables[name]["rank"].drop_nulls().to_list())
    world = max((one.world_size for one in clues if one.world_size is not None), default=0)
    return replace(
        run.coverage,
        inputs=(*run.coverage.inputs, *(_input(one) for one in clues)),
        ranks_seen=tuple(sorted(seen)),
        ranks_expected=run.coverage.ranks_expected or tuple(range(world)),
        dropped_records=run.coverage.dropped_records + sum(one.dropped for one in clues),
    )


def _input(one: Clues) -> InputFile:
    return InputFile(
        one.source.label, one.kind, one.source.bytes, one.rank, one.read, one.dropped, "; ".join(one.notes)
    )
