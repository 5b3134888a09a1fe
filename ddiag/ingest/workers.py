"""Reads many files, in processes of their own where that pays; a worker that dies costs its file, not the run."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from ddiag.ingest.read import Refused, read_source
from ddiag.ingest.sources import Source
from ddiag.ingest.trace import Trace

Progress = Callable[[int, int, str], None]
Outcome = Trace | Refused

SMALL_BYTES = 20 << 20
"""Unpacked or packed, less than this in all is read faster here than in new processes."""
_DIED = "the process reading it died (out of memory?): give it alone or with --jobs 1 on a machine with more memory"


def read_all(sources: Sequence[Source], jobs: int | None, progress: Progress | None) -> list[Outcome]:
    """What came of each source, in order."""
    count = min(jobs or os.cpu_count() or 1, len(sources))
    report = _Report(len(sources), progress)
    if count > 1 and (jobs or sum(source.bytes for source in sources) >= SMALL_BYTES):
        outcomes = _in_processes(sources, count, report)
    else:
        outcomes = {}
    for place, source in enumerate(sources):
        if place not in outcomes:
            outcomes[place] = read_source(source)
            report(source)
    return [outcomes[place] for place in range(len(sources))]


class _Report:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self, source: Source) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total, source.label)


def _pool(count: int) -> ProcessPoolExecutor:
    """Fresh interpreters: forking a process in which polars runs threads can deadlock."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def _ready() -> bool:
    return True


def _in_processes(sources: Sequence[Source], count: int, report: _Report) -> dict[int, Outcome]:
    """Outcomes by place; places that are missing must be read in this process."""
    outcomes: dict[int, Outcome] = {}
    try:
        with _pool(count) as pool:
            pool.submit(_ready).result()
            _collect(pool, sources, range(len(sources)), outcomes, report)
        return outcomes
    except BrokenProcessPool:
        if not outcomes and not _can_start():
            return {}
    for place, source in enumerate(sources):
        if place not in outcomes:
            outcomes[place] = _alone(source)
            report(source)
    return outcomes


def _can_start() -> bool:
    """False where workers cannot even begin: a script without the ``__main__`` guard, a sandbox."""
    try:
        with _pool(1) as pool:
            return pool.submit(_ready).result()
    except BrokenProcessPool:
        return False


def _collect(
    pool: ProcessPoolExecutor,
    sources: Sequence[Source],
    places: Sequence[int],
    outcomes: dict[int, Outcome],
    report: _Report,
) -> None:
    largest_first = sorted(places, key=lambda place: -sources[place].bytes)
    running: dict[Future[Outcome], int] = {pool.submit(read_source, sources[place]): place for place in largest_first}
    for future in as_completed(running):
        outcomes[running[future]] = future.result()
        report(sources[running.pop(future)])


def _alone(source: Source) -> Outcome:
    try:
        with _pool(1) as pool:
            return pool.submit(read_source, source).result()
    except BrokenProcessPool:
        return Refused(source, _DIED)
