"""The run folder of a job: made by the first supervisor, joined by those of the same job on other nodes.

Supervisors of one job find each other through ``<out>/.joins``, when ``out`` is on a shared file system and either the
scheduler names the job (a Slurm step, an Open MPI or PMIx job) or the user does (``--name``). A folder is joined only
while its job runs and by each of its processes once; without a scheduler's word, for :data:`JOIN_WITHIN_S` and by each
host once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ddiag.errors import InputError
from ddiag.schema.folder import NODES, PROFILE, RANKS, Manifest, folder_name, read_manifest, write_manifest, write_whole

JOIN_WITHIN_S = 15 * 60
_JOINS = ".joins"
_JOB_VARIABLES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("SLURM_JOB_ID", "SLURM_STEP_ID"), "SLURM_PROCID"),
    (("OMPI_MCA_ess_base_jobid",), "OMPI_COMM_WORLD_RANK"),
    (("PMIX_NAMESPACE",), "PMIX_RANK"),
    (("PMI_JOBID",), "PMI_RANK"),
)
"""(what names a job, what numbers its processes)."""


@dataclass(frozen=True)
class Place:
    """This supervisor's run folder."""

    path: Path
    manifest: Manifest
    member: str
    founder: bool
    """We made it, and write its manifest and report."""


@dataclass(frozen=True)
class Node:
    """``nodes/<host>-<pid>.json``: one supervisor and how its part of the job ended."""

    host: str
    supervisor_pid: int
    start_wall_ns: int
    end_wall_ns: int | None = None
    exit_code: int | None = None
    member: str = ""
    """Which of the processes a scheduler started; empty when none says."""
    key: str = ""
    """Name of its file."""


def scheduler_job(environment: Mapping[str, str]) -> tuple[str, str]:
    """(job, member): what a scheduler calls the job whose processes each have a supervisor; empty when none does."""
    for names, member in _JOB_VARIABLES:
        values = [environment.get(name, "") for name in (*names, member)]
        if all(values):
            return "/".join((*names, *values[:-1], environment.get("SLURM_RESTART_COUNT", ""))), values[-1]
    return "", ""


def open_run(out: Path, manifest: Manifest, *, named: bool, environment: Mapping[str, str]) -> Place:
    """Join the run of our job, or found it. *named*: the user gave the run its name."""
    out.mkdir(parents=True, exist_ok=True)
    job, member = scheduler_job(environment)
    if not job and not named:
        return _found(out, manifest, member)
    key = hashlib.sha256(f"{manifest.name}\n{job}".encode()).hexdigest()[:16]
    joins = out / _JOINS
    joins.mkdir(exist_ok=True)
    while True:
        number = _last(joins, key)
        joined = _join(out, joins / f"{key}.{number}", manifest, member) if number else None
        if joined is not None:
            return joined
        founded = _found_and_announce(out, joins / f"{key}.{number + 1}", manifest, member)
        if founded is not None:
            return founded


def _found(out: Path, manifest: Manifest, member: str) -> Place:
    """A new folder, its manifest first of all."""
    name = folder_name(manifest.name, wall_ns=manifest.start_wall_ns, pid=manifest.supervisor_pid)
    for number in range(1000):
        path = out / (f"{name}.{number}" if number else name)
        try:
            path.mkdir()
        except FileExistsError:
            continue  # a supervisor with our pid on another node, in the same second
        write_manifest(path, manifest)
        for inner in (RANKS, NODES, PROFILE):
            (path / inner).mkdir()
        return _registered(Place(path, manifest, member, founder=True))
    raise FileExistsError(f"{out / name}: a thousand folders of this name")


def _found_and_announce(out: Path, mark: Path, manifest: Manifest, member: str) -> Place | None:
    """A new folder that others may join; None when somebody else was quicker."""
    place = _found(out, manifest, member)
    announcement = mark.with_name(f".{mark.name}.{manifest.host}.{manifest.supervisor_pid}")
    announcement.write_text(json.dumps({"folder": place.path.name}), encoding="utf-8")
    try:
        os.link(announcement, mark)
        return place
    except FileExistsError:
        _remove_unused(place.path)
        return None
    finally:
        announcement.unlink()


def _remove_unused(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _last(joins: Path, key: str) -> int:
    numbers = [int(path.suffix[1:]) for path in joins.glob(f"{key}.*") if path.suffix[1:].isdigit()]
    return max(numbers, default=0)


def _join(out: Path, mark: Path, ours: Manifest, member: str) -> Place | None:
    """The announced run, when it is the one our job belongs to."""
    try:
        path = out / str(json.loads(mark.read_text(encoding="utf-8"))["folder"])
        manifest = read_manifest(path)
    except (OSError, ValueError, KeyError, InputError):
        return None
    age_s = (ours.start_wall_ns - manifest.start_wall_ns) / 1e9
    if manifest.end_wall_ns is not None or (not member and abs(age_s) > JOIN_WITHIN_S):
        return None
    if member:
        taken = any((path / NODES).glob(f"*{_member_mark(member)}.json"))
    else:
        taken = ours.host in {node.host for node in read_nodes(path)}
    if taken:
        return None
    return _registered(Place(path, replace(ours, name=manifest.name), member, founder=False))


def _node_file(place: Place) -> Path:
    ours = place.manifest
    mark = _member_mark(place.member) if place.member else ""
    return place.path / NODES / f"{_clean(ours.host)}-{ours.supervisor_pid}{mark}.json"


def _member_mark(member: str) -> str:
    """In the file's name, so that thousands of tasks that join do not have to read each other's files."""
    return f".task{_clean(member)}"


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def _registered(place: Place) -> Place:
    write_node(place, None)
    return place


def write_node(place: Place, exit_code: int | None) -> None:
    """Say that this supervisor takes part, or (with an exit code) that its part has ended."""
    ours = place.manifest
    end = None if exit_code is None else time.time_ns()
    values = asdict(Node(ours.host, ours.supervisor_pid, ours.start_wall_ns, end, exit_code, place.member))
    del values["key"]
    write_whole(_node_file(place), json.dumps(values) + "\n")


def read_nodes(run: Path, *, but: AbstractSet[str] = frozenset()) -> list[Node]:
    """Every supervisor of a run but those whose keys are given; files that are being replaced are left out."""
    found = []
    for path in sorted((run / NODES).glob("*.json")):
        if path.name.endswith(".env.json") or path.name in but:
            continue
        try:
            found.append(Node(**json.loads(path.read_text(encoding="utf-8")), key=path.name))
        except (OSError, ValueError, TypeError):
            continue
    return found
