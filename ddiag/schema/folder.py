"""Where things lie in a run folder, and its manifest ``run.json``.

::

    <out>/<name>-<YYYYmmdd-HHMMSS>-<pid>/
      run.json                                       manifest, written first and again at the end
      env.json                                       versions, allow-listed environment, host facts
      ranks/a<attempt>/r<rank>-<pid>.ring            records of one training process (ddiag.schema.ring)
                                    .native.ring     the same, written by the native kernel
                                    .steps           one summary per step (ddiag.schema.steps)
                                    .names           texts by id (ddiag.schema.names)
                                    .facts.jsonl     slow facts: {"t": wall_ns, "kind": "…", …}
                                    .fatal           what faulthandler wrote when a signal like SIGSEGV ended it
      nodes/<host>.samples                           samples of devices and host
      profile/                                       torch.profiler traces of requested windows
      hang/                                          what was captured of a job that hung (ddiag.schema.hang)
      errors.jsonl                                   what the recorder's door caught, and the supervisor's problems
      report.html diagnosis.json                     written at the end
      analysis.log upload.log                        what diagnosis and copy said, until they succeed
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ddiag.errors import InputError
from ddiag.schema.phases import FORMAT_VERSION

RUN_JSON = "run.json"
ENV_JSON = "env.json"
ERRORS = "errors.jsonl"
RANKS = "ranks"
NODES = "nodes"
PROFILE = "profile"
REPORT = "report.html"
DIAGNOSIS = "diagnosis.json"
ANALYSIS_LOG = "analysis.log"
UPLOAD_LOG = "upload.log"

RUN_VARIABLE = "DDIAG_RUN"
"""The run folder; without it the recorder stays away."""
DISABLE_VARIABLE = "DDIAG_DISABLE"
"""``1`` switches everything off."""
BUILD_VARIABLE = "DDIAG_BUILD"
"""``0`` keeps the supervisor from building the native kernel after a job."""
DEBUG_VARIABLE = "DDIAG_DEBUG"
"""``1`` lets the recorder write what it catches to stderr as well."""
BESIDE_BOOTSTRAP = "ddiag-bootstrap.json"
"""Lies beside a per-run copy of the bootstrap folder, for launchers that drop ``DDIAG_*``: {"run": …, "package": …}."""

_STEM = re.compile(r"r(-?\d+)-(\d+)(?:\.(\d+))?\.ring")
_ATTEMPT = re.compile(r"a(\d+)")


def folder_name(name: str, *, wall_ns: int, pid: int) -> str:
    """``<name>-<YYYYmmdd-HHMMSS>-<pid>``, local time, *name* reduced to what every file system takes."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:80] or "run"
    return f"{clean}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(wall_ns / 1e9))}-{pid}"


@dataclass(frozen=True)
class ProcessFiles:
    """The files of one training process."""

    folder: Path
    """``ranks/a<attempt>``"""
    attempt: int
    rank: int
    pid: int
    turn: int = 0
    """> 0 when one process joined a second job (its rank or world changed)."""

    def _file(self, suffix: str) -> Path:
        turn = f".{self.turn}" if self.turn else ""
        return self.folder / f"r{self.rank:05d}-{self.pid}{turn}{suffix}"

    @property
    def ring(self) -> Path:
        return self._file(".ring")

    @property
    def native_ring(self) -> Path:
        return self._file(".native.ring")

    @property
    def steps(self) -> Path:
        return self._file(".steps")

    @property
    def names(self) -> Path:
        return self._file(".names")

    @property
    def facts(self) -> Path:
        return self._file(".facts.jsonl")

    @property
    def fatal(self) -> Path:
        return self._file(".fatal")


def process_files(run: Path, *, attempt: int, rank: int, pid: int, turn: int = 0) -> ProcessFiles:
    return ProcessFiles(run / RANKS / f"a{attempt}", attempt, rank, pid, turn)


def find_processes(run: Path) -> list[ProcessFiles]:
    """Every training process that left a ring, ordered by attempt, rank, pid."""
    found = []
    for path in (run / RANKS).glob("a*/r*.ring"):
        attempt, stem = _ATTEMPT.fullmatch(path.parent.name), _STEM.fullmatch(path.name)
        if attempt and stem:
            rank, pid, turn = (int(part or 0) for part in stem.groups())
            found.append(ProcessFiles(path.parent, int(attempt[1]), rank, pid, turn))
    return sorted(found, key=lambda files: (files.attempt, files.rank, files.pid, files.turn))


def samples_file(run: Path, host: str) -> Path:
    return run / NODES / f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.samples"


@dataclass(frozen=True)
class Attempt:
    """One start of the workers (torchelastic restarts them)."""

    attempt: int
    start_wall_ns: int
    end_wall_ns: int | None = None
    ranks: tuple[int, ...] = ()
    """Ranks that left files."""


@dataclass(frozen=True)
class Manifest:
    """``run.json``."""

    ddiag_version: str
    name: str
    argv: tuple[str, ...]
    """The job's command."""
    launcher: str
    """torchrun, python, deepspeed, accelerate, mpirun, srun, shell or other; 'api' when no supervisor started it."""
    start_wall_ns: int
    host: str
    supervisor_pid: int
    supervisor_start_ticks: int = 0
    """Field 22 of /proc/PID/stat: tells the supervisor from a later process with its pid."""
    options: Mapping[str, Any] = field(default_factory=dict)
    end_wall_ns: int | None = None
    """Absent while the job runs, or when the supervisor was killed."""
    exit_code: int | None = None
    """As a shell would show it (128 + signal)."""
    asked_to_end: str | None = None
    """Name of the signal with which somebody told the job to end (SIGINT, SIGTERM, …); absent when nobody did."""
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Replace ``run.json`` in one go: a reader sees the old or the new one, whole."""
    write_whole(run / RUN_JSON, json.dumps(asdict(manifest), indent=1) + "\n")


def read_manifest(run: Path) -> Manifest:
    """The manifest; unknown fields (of a newer ddiag, same format) are ignored."""
    path = run / RUN_JSON
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: not a run folder of ddiag") from error
    return parse_manifest(text, path)


def parse_manifest(text: bytes, path: Path) -> Manifest:
    """The manifest in *text*; *path* says where it came from."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(found, dict) or not isinstance(found.get("format_version"), int):
        raise InputError(f"{path}: not a manifest of ddiag (no format_version)")
    check_version(found["format_version"], path)
    known = {one.name for one in fields(Manifest)}
    values = {key: value for key, value in found.items() if key in known}
    values["argv"] = tuple(values.get("argv", ()))
    values["notes"] = tuple(values.get("notes", ()))
    values["attempts"] = tuple(_attempt(one) for one in values.get("attempts", ()))
    try:
        return Manifest(**values)
    except TypeError as error:
        raise InputError(f"{path}: incomplete manifest ({error})") from error


def _attempt(found: Mapping[str, Any]) -> Attempt:
    known = {one.name for one in fields(Attempt)}
    values = {key: value for key, value in found.items() if key in known}
    return Attempt(**{**values, "ranks": tuple(values.get("ranks", ()))})


def check_version(found: int, path: Path) -> None:
    """A newer format is refused, since guessing at it would make wrong diagnoses."""
    if found > FORMAT_VERSION:
        raise InputError(f"{path}: format {found}, this ddiag reads up to {FORMAT_VERSION}: use a newer ddiag")


def write_whole(path: Path, text: str) -> None:
    """Write beside, then rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
