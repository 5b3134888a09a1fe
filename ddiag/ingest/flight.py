"""Flight Recorder dumps (torch 2.2 and later; pickle or JSON) to the tables ``flight`` and ``flight_status``."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

from ddiag.ingest.clues import Clues
from ddiag.ingest.flight_columns import columns
from ddiag.ingest.flight_dump import PICKLE, Dump, dump_of
from ddiag.ingest.flight_entries import Entries
from ddiag.ingest.flight_rank import host_of, rank_of, world_size
from ddiag.ingest.flight_status import status_rows
from ddiag.ingest.sources import PlainText, Source
from ddiag.model.incident import FLIGHT, FLIGHT_STATUS

NAME = "flight_recorder"
READ_BYTES = 16 << 20
_JSON = re.compile(rb'"(?:profiling_name|collective_seq_id|pg_status|nccl_comm_state)"\s*:')
_EMPTY_JSON = re.compile(rb'\s*\{.{0,200}"(?:version|pg_config|comm_lib_version|nccl_version)"\s*:', re.DOTALL)


def matches(head: bytes, name: str) -> bool:
    """Any pickle (others are refused by name), or JSON with the keys only these dumps have."""
    if PICKLE.match(head):
        return True
    bare = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if bare[:1] not in (b"{", b"["):
        return False
    return _JSON.search(bare) is not None or (_EMPTY_JSON.match(bare) is not None and b'"pg_config"' in bare)


def read(source: Source, text: PlainText) -> Clues:
    """Raises UnusableError for what is no dump."""
    parts = []
    while chunk := text.read(READ_BYTES):
        parts.append(chunk)
    with _no_collection():
        return clues_of(source, dump_of(b"".join(parts), text.damage))


@contextmanager
def _no_collection() -> Iterator[None]:
    """A dump is many small containers and no cycle: looking for garbage meanwhile takes longer than reading it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def clues_of(source: Source, dump: Dump) -> Clues:
    """The tables of one dump."""
    entries = Entries(dump.entries)
    folder = source.label.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
    rank, host = rank_of(dump, entries, source.name, folder), host_of(source.name)
    flight = columns(entries, dump.groups, rank)
    whose = {"rank": rank, "host": host, "source": source.label}
    status = pl.DataFrame(
        [row | whose for row in status_rows(dump, entries, flight)], schema=FLIGHT_STATUS.schema, orient="row"
    )
    tables = {FLIGHT.name: flight, FLIGHT_STATUS.name: status}
    return Clues(
        source,
        NAME,
        {name: table for name, table in tables.items() if not table.is_empty()},
        rank=rank,
        host=host,
        world_size=world_size(dump),
        read=len(dump.entries) + dump.dropped,
        dropped=dump.dropped,
        notes=_notes(dump),
    )


def _notes(dump: Dump) -> tuple[str, ...]:
    """What was lost."""
    if not dump.damage:
        return ()
    return (f"{dump.damage}: used as far as it goes, the newest entries may be missing",)
