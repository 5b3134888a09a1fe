"""Starts a real job under the recorder and reads what it left, beside what the job itself says it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddiag
from ddiag.schema import names, ring, steps
from ddiag.schema.folder import ERRORS, ProcessFiles, find_processes
from ddiag.schema.phases import Flag, Kind, Op
from ddiag.schema.ring import Record
from ddiag.schema.steps import StepRecord

JOBS = Path(__file__).parent / "jobs"
PACKAGE = Path(ddiag.__file__).parent
BOOTSTRAP = PACKAGE / "capture" / "bootstrap"


@dataclass(frozen=True)
class Call:
    """A collective, as records and as the jobs' own accounts tell it."""

    op: str
    group: tuple[int, ...]
    """Global ranks."""
    bytes_in: int
    bytes_out: int
    step: int


@dataclass(frozen=True)
class RankRecording:
    """What one rank left."""

    files: ProcessFiles
    truth: dict[str, Any]
    """What the job wrote about itself."""

    @property
    def names(self) -> list[str]:
        return names.decode(self.files.names.read_bytes())

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.files.facts.read_text().splitlines()]

    def facts_of(self, kind: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if fact["kind"] == kind]

    @property
    def records(self) -> list[Record]:
        """Of both rings, by time of their beginning."""
        found = []
        for path in (self.files.ring, self.files.native_ring):
            if path.exists():
                data = path.read_bytes()
                found += ring.unpack_records(data, ring.unpack_header(data).capacity)
        return sorted(found, key=lambda record: record.enqueue_ns)

    @property
    def steps(self) -> list[StepRecord]:
        return steps.unpack(self.files.steps.read_bytes())

    @property
    def collectives(self) -> list[Record]:
        return [one for one in self.records if one.kind == Kind.COLLECTIVE and one.op != Op.WAIT]

    @property
    def tier(self) -> str:
        return str(self.facts_of("tier")[-1]["tier"])

    @property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """Global ranks by id."""
        return {fact["id"]: tuple(fact["ranks"]) for fact in self.facts_of("group")}

    def groups_named(self, description: str) -> tuple[int, ...]:
        """Global ranks of the group that torch describes so."""
        (found,) = [fact for fact in self.facts_of("group") if fact["desc"] == description]
        return tuple(found["ranks"])

    def label(self, record: Record) -> str | None:
        return self.names[record.label] if record.label >= 0 else None

    def dtype(self, record: Record) -> str | None:
        return self.names[record.dtype] if record.dtype != ring.NO_DTYPE else None

    def call(self, record: Record) -> Call:
        group = self.groups[record.group]
        return Call(Op(record.op).name.lower(), group, record.bytes_in, record.bytes_out, record.step)

    @property
    def calls(self) -> list[Call]:
        return [self.call(record) for record in self.collectives]

    @property
    def peers(self) -> list[int]:
        """Global ranks of roots and other sides, a number for each call; -1: none."""
        return [self.groups[one.group][one.peer] if one.peer >= 0 else -1 for one in self.collectives]

    @property
    def true_calls(self) -> list[Call]:
        return [Call(**{**one, "group": tuple(one["group"])}) for one in self.truth["calls"]]


@dataclass(frozen=True)
class Recording:
    """A job's run folder."""

    run: Path
    ranks: tuple[RankRecording, ...]
    output: str

    @property
    def errors(self) -> list[dict[str, Any]]:
        path = self.run / ERRORS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def record(
    folder: Path,
    job: str,
    *arguments: str,
    ranks: int = 2,
    tier: str = "",
    python: str = sys.executable,
    environment: dict[str, str] | None = None,
    timeout_s: int = 160,
) -> Recording:
    """Run ``jobs/<job>.py`` on *ranks* processes; its first argument is the folder for its own account."""
    run, own = folder / "run", folder / "truth"
    run.mkdir(parents=True)
    own.mkdir()
    start = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    given = {"PYTHONPATH": str(BOOTSTRAP), "DDIAG_RUN": str(run), "OMP_NUM_THREADS": "1", "DDIAG_TIER": tier}
    done = subprocess.run(
        [python, *start, str(JOBS / f"{job}.py"), str(own), *arguments],
        env={**os.environ, **given, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"the recorded {job} ended with {done.returncode}:\n{output[-6000:]}"
    found = [_rank(files, own) for files in find_processes(run)]
    assert {one.files.rank for one in found} == set(range(ranks)), "every rank was seen"
    return Recording(run, tuple(sorted(found, key=lambda one: one.files.rank)), output)


def _rank(files: ProcessFiles, own: Path) -> RankRecording:
    path = own / f"rank{files.rank}.json"
    return RankRecording(files, json.loads(path.read_text()) if path.exists() else {})


def having(records: Iterable[Record], flag: Flag) -> list[Record]:
    return [record for record in records if record.flags & flag]
