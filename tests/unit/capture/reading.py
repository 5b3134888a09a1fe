"""What a recorder left, read as anybody else would read it."""

from __future__ import annotations

from pathlib import Path

from ddiag.schema import ring, steps
from ddiag.schema.folder import ProcessFiles, find_processes
from ddiag.schema.phases import Kind, Phase
from ddiag.schema.ring import Record
from ddiag.schema.steps import StepRecord


def the_process(run: Path) -> ProcessFiles:
    (files,) = find_processes(run)
    return files


def records(files: ProcessFiles, kind: Kind | None = None) -> list[Record]:
    data = files.ring.read_bytes()
    found = ring.unpack_records(data, ring.unpack_header(data).capacity)
    return [record for record in found if kind is None or record.kind == kind]


def phases(files: ProcessFiles) -> list[str]:
    """Names of the phases in the order in which they began."""
    return [Phase(record.op).name for record in records(files, Kind.PHASE)]


def live(files: ProcessFiles) -> ring.Live:
    return ring.unpack_live(files.ring.read_bytes())


def steps_of(files: ProcessFiles) -> list[StepRecord]:
    return steps.unpack(files.steps.read_bytes())
