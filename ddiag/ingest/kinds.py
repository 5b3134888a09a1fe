"""Kinds of evidence that are neither traces nor plain logs, told by content, each with its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddiag.ingest import (
    bundle,
    config_files,
    error_file,
    flight,
    inspector,
    memory_snapshot,
    node_report,
    nsys,
    ras,
    recorded_hang,
)
from ddiag.ingest.clues import Clues
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.trace import Several


@dataclass(frozen=True)
class Kind:
    """``matches`` sees the first 64 KiB of the unpacked content and the file's name (a hint only)."""

    name: str
    matches: Callable[[bytes, str], bool]
    read: Callable[[Source, PlainText], Clues | Several]
    """Raises :class:`ddiag.ingest.trace.UnusableError` with one line when nothing can be used."""


KINDS: tuple[Kind, ...] = (
    Kind(recorded_hang.NAME, recorded_hang.matches, recorded_hang.read),
    Kind(memory_snapshot.NAME, memory_snapshot.matches, memory_snapshot.read),
    Kind(flight.NAME, flight.matches, flight.read),
    Kind(ras.NAME, ras.matches, ras.read),
    Kind(inspector.NAME, inspector.matches, inspector.read),
    Kind("bundle", bundle.matches, bundle.read),
    Kind("doctor", node_report.matches, node_report.read),
    Kind("nsys", nsys.matches, nsys.read),
    Kind(error_file.NAME, error_file.matches, error_file.read),
    Kind("config_json", config_files.matches_json, config_files.read_json),
    Kind("config_yaml", config_files.matches_yaml, config_files.read_yaml),
)
"""In the order in which they are asked."""
