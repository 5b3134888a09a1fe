"""What a reader returns: the tables of one file with what is needed to join them with those of the other files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from ddiag.ingest.facts import Group
from ddiag.ingest.sources import Source

EPOCH_BEGIN_NS = 9 * 10**17


class UnusableError(Exception):
    """A file that is a trace but holds nothing to analyse; the text is one line for the user."""


class OtherFileError(UnusableError):
    """A file that is no evidence at all, such as a checkpoint: expected in a folder, an error when named."""


@dataclass(frozen=True)
class Trace:
    """One trace. Its tables have no rank and no seq yet; times are ns on its own clock (the epoch if it has one)."""

    source: Source
    kind: str
    framework: str
    tables: dict[str, pl.DataFrame]
    rank: int | None = None
    rank_from: str = "content"
    """content or name."""
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    groups: tuple[Group, ...] = ()
    main_tid: int | None = None
    device_kind: str = "cpu"
    device_name: str | None = None
    device_memory_bytes: int | None = None
    with_stack: bool = False
    profile_memory: bool = False
    versions: str | None = None
    truncated: bool = False
    events: int = 0
    dropped: int = 0
    notes: tuple[str, ...] = field(default=())
    recording: str | None = None
    """Names the recording where it may exist in several formats: traces with the same name are one."""
    is_copy: bool = False
    """Made from the recording for a viewer, and poorer than it."""

    @property
    def on_epoch(self) -> bool:
        """Times are Unix time (later than 1998), so they can be compared with other files'."""
        return self.span[0] > EPOCH_BEGIN_NS

    @cached_property
    def span(self) -> tuple[int, int]:
        """First start and last end over all tables (ns)."""
        starts, ends = [], []
        for table in self.tables.values():
            first = "ts_ns" if "ts_ns" in table.columns else "start_ns"
            last = "ts_ns" if "ts_ns" in table.columns else "end_ns"
            starts.append(table[first].min())
            ends.append(table[last].max())
        known = [int(value) for value in starts + ends if isinstance(value, int)]
        return (min(known), max(known)) if known else (0, 0)


@dataclass(frozen=True)
class Several:
    """What one file holds when several processes wrote into it."""

    traces: tuple[Trace, ...]
