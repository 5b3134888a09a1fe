"""Which processes make the run: one job, one attempt, one process per rank. Nothing is left out in silence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddiag.errors import InputError
from ddiag.ingest.recorded_files import RunSources
from ddiag.ingest.recorded_process import Process
from ddiag.ingest.sources import STORAGE_ERRORS, read_whole
from ddiag.schema.folder import RUN_JSON, Manifest, parse_manifest

ENOUGH_STEPS = 5
"""A later attempt is preferred from here on; a shorter one (it has just begun, or failed at once) is not."""


@dataclass
class Job:
    """The processes that are analysed, and what was left out."""

    folders: list[RunSources] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    manifest: Manifest | None = None
    notes: list[str] = field(default_factory=list)
    started_again: bool = False
    """The workers were started again after the attempt that is analysed."""


@dataclass
class _Folder:
    sources: RunSources
    processes: list[Process]
    manifest: Manifest | None
    note: str = ""

    @property
    def ranks(self) -> set[int]:
        return {process.rank for process in self.processes}

    @property
    def worlds(self) -> set[int]:
        return {process.world_size for process in self.processes if process.world_size is not None}

    @property
    def span(self) -> tuple[int, int]:
        spans = [(p.span[0] + p.clock_offset_ns, p.span[1] + p.clock_offset_ns) for p in self.processes]
        return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else (0, 0)


def choose(folders: Sequence[RunSources], read: Callable[[RunSources], list[Process]]) -> Job:
    """The newest job among *folders*; folders of its other nodes are joined."""
    found = [_folder(sources, read(sources)) for sources in folders]
    trained = sorted((one for one in found if one.processes), key=lambda one: one.span[0])
    job = Job(notes=[one.note for one in found if one.note])
    if not trained:
        return job
    newest = trained[-1]
    mine = [one for one in trained if one is newest or _same_job(one, newest)]
    job.folders = [one.sources for one in mine]
    job.manifest = next((one.manifest for one in mine if one.manifest is not None), None)
    others = [one.sources.root for one in trained if not any(one is kept for kept in mine)]
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        job.notes.append(f"several recordings were given: the newest is analysed ({newest.sources.root}); not: {shown}")
    job.processes = _one_per_rank(_one_attempt([p for one in mine for p in one.processes], job), job)
    return job


def _folder(sources: RunSources, processes: list[Process]) -> _Folder:
    source = sources.own.get(RUN_JSON)
    if source is None:
        return _Folder(sources, processes, None)
    try:
        return _Folder(sources, processes, parse_manifest(read_whole(source), Path(source.label)))
    except InputError as error:
        return _Folder(sources, processes, None, str(error))
    except STORAGE_ERRORS as error:
        return _Folder(sources, processes, None, f"{source.label}: cannot be read: {error}")


def _same_job(one: _Folder, other: _Folder) -> bool:
    """Other ranks of a world of the same size, at the same time: another node's folder of the same job."""
    overlap = one.span[0] < other.span[1] and other.span[0] < one.span[1]
    return overlap and not one.ranks & other.ranks and bool(one.worlds & other.worlds)


def _one_attempt(processes: Sequence[Process], job: Job) -> list[Process]:
    """The latest attempt that got anywhere, else the one that got furthest."""
    attempts: dict[int, list[Process]] = defaultdict(list)
    for process in processes:
        attempts[process.attempt].append(process)
    steps = {attempt: max(process.step_count for process in mine) for attempt, mine in attempts.items()}
    got_somewhere = [attempt for attempt, count in steps.items() if count >= ENOUGH_STEPS]
    chosen = max(got_somewhere) if got_somewhere else max(steps, key=lambda attempt: (steps[attempt], attempt))
    job.started_again = chosen < max(attempts)
    if len(attempts) > 1:
        others = ", ".join(f"attempt {a} ({steps[a]:,} steps)" for a in sorted(attempts) if a != chosen)
        job.notes.append(
            f"the workers were restarted: attempt {chosen} is analysed ({steps[chosen]:,} steps), not {others}"
        )
    return attempts[chosen]


def _one_per_rank(processes: Sequence[Process], job: Job) -> list[Process]:
    by_rank: dict[int, list[Process]] = defaultdict(list)
    for process in processes:
        by_rank[process.rank].append(process)
    kept = []
    for rank, mine in sorted(by_rank.items()):
        best = max(mine, key=lambda process: (process.step_count, process.record_count, process.span[1]))
        kept.append(best)
        if len(mine) > 1:
            others = ", ".join(f"pid {process.pid}" for process in mine if process is not best)
            job.notes.append(f"rank {rank} was recorded by several processes: pid {best.pid} is used, not {others}")
    return kept
