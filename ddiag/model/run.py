"""A run: the facts read from all evidence, with an account of what was read and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from ddiag.model.tables import TABLES


@dataclass(frozen=True)
class InputFile:
    """One file of evidence and what became of it."""

    path: str
    kind: str
    """kineto, tensorflow, … or 'unknown'."""
    bytes: int
    rank: int | None = None
    events: int = 0
    dropped: int = 0
    """Records that could not be understood and were left out."""
    note: str = ""
    """One line: what was odd about it (truncated at 71 %, rank taken from the file name …)."""


@dataclass(frozen=True)
class RecordingCost:
    """What ddiag's recorder itself took of the steps, on the rank it cost most."""

    rank: int
    share: float
    """Of its step, 0–1."""
    ms_per_step: float
    step_ms: float


@dataclass(frozen=True)
class Coverage:
    """What was read, dropped, truncated or refused; a report shows all of it."""

    inputs: tuple[InputFile, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    """(path, why) of evidence that could not be used."""
    ranks_seen: tuple[int, ...] = ()
    ranks_expected: tuple[int, ...] = ()
    """0 … world_size-1 when the evidence states a world size, else empty."""
    steps: tuple[int, ...] = ()
    dropped_records: int = 0
    notes: tuple[str, ...] = ()
    """One line each: anything else that limits what can be concluded."""
    recording_cost: RecordingCost | None = None
    """None for traces, and where too few steps were recorded to tell."""
    ending: str = ""
    """How the recorded job ended, unless well: 'failed with exit code 1'."""

    @property
    def recorded(self) -> bool:
        """Some of the evidence is a recording of ddiag's."""
        return any(item.kind == "recording" for item in self.inputs)

    @property
    def profiled(self) -> bool:
        """Some of it is traces of torch.profiler."""
        return any(item.kind == "kineto" for item in self.inputs)

    @property
    def ranks_missing(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.ranks_expected) - set(self.ranks_seen)))


@dataclass(frozen=True)
class Run:
    """Facts of one job. A table that the evidence cannot give is absent from ``tables`` (not empty)."""

    tables: Mapping[str, pl.DataFrame]
    coverage: Coverage = field(default_factory=Coverage)
    traces: Run | None = None
    """Of a recorded run: the profiler traces taken meanwhile, as a run of their own (same ranks, same clock)."""

    @property
    def recorded(self) -> bool:
        """ddiag's recorder made it, rather than a profiler."""
        return "step_summaries" in self.tables or "phases" in self.tables

    def table(self, name: str) -> pl.DataFrame:
        """The table *name*, empty with the right columns when the evidence has none."""
        frame = self.tables.get(name)
        return TABLES[name].empty() if frame is None else frame

    def has(self, name: str) -> bool:
        frame = self.tables.get(name)
        return frame is not None and not frame.is_empty()
