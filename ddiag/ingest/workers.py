"""Reads many files, in processes of their own where that pays; a worker that dies costs its file, not the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType

from ddiag.ingest.clues import Clues
from ddiag.ingest.read import Refused, read_source
from ddiag.ingest.sources import Source
from ddiag.ingest.trace import Several, Trace

Progress = Callable[[int, int, str], None]
Outcome = Trace | Several | Clues | Refused
Read = Callable[[Source], Outcome]

SMALL_BYTES = 80 << 20
"""Less text than this in all is read faster here than in new processes, which take most of a second to start."""
_TRACES = (".json", ".gz", ".zst", ".pb", ".zip")
_LOG_COSTS = 8
"""A byte of a log or dump takes about this many times as long as one of a trace."""
_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_DIED = "the process reading it died (out of memory?): give it alone or with --jobs 1 on a machine with more memory"


def read_all(
    sources: Sequence[Source], jobs: int | None, progress: Progress | None, read: Read = read_source
) -> list[Outcome]:
    """What came of each source, in order."""
    count = min(jobs or os.cpu_count() or 1, len(sources))
    report = _Report(len(sources), progress)
    if count > 1 and (jobs or sum(map(_work, sources)) >= SMALL_BYTES):
        outcomes = _in_processes(sources, count, report, read)
        return [outcomes[place] for place in range(len(sources))]
    return [_read_here(source, report, read) for source in sources]


def _work(source: Source) -> int:
    """Bytes of trace that take as long to read; the name is a good enough hint for that."""
    return source.text_bytes * (1 if source.name.endswith(_TRACES) else _LOG_COSTS)


def _read_here(source: Source, report: _Report, read: Read) -> Outcome:
    outcome = read(source)
    report(source)
    return outcome


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


@contextmanager
def _starting() -> Iterator[None]:
    """While workers start: they must not run the user's script again (it may lack the ``__main__`` guard, or be a
    notebook), and need no thread pools, since there is a worker per core."""
    main, environment = sys.modules["__main__"], {key: os.environ.get(key) for key in _ONE_THREAD}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(_ONE_THREAD)
    try:
        with _interrupts_later():
            yield
    finally:
        sys.modules["__main__"] = main
        for key, value in environment.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """An interrupt reaches workers too. Those started here never hear of it (it would meet them in the middle of an
    import), and it comes to this process once they have what they need to start."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _in_processes(sources: Sequence[Source], count: int, report: _Report, read: Read) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    try:
        with _pool(count) as pool, _ended_with_us(pool):
            _collect(pool, sources, outcomes, report, read)
    except BrokenProcessPool:
        for place, source in enumerate(sources):
            if place not in outcomes:
                outcomes[place] = _alone(source, read)
                report(source)
    return outcomes


def _collect(
    pool: ProcessPoolExecutor, sources: Sequence[Source], outcomes: dict[int, Outcome], report: _Report, read: Read
) -> None:
    """Largest files first, so that none is left for the end."""
    with _starting():
        running: dict[Future[Outcome], int] = {
            pool.submit(read, sources[place]): place
            for place in sorted(range(len(sources)), key=lambda place: -sources[place].bytes)
        }
    for future in as_completed(list(running)):
        place = running.pop(future)
        outcomes[place] = future.result()
        report(sources[place])


@contextmanager
def _ended_with_us(pool: ProcessPoolExecutor) -> Iterator[None]:
    """An interrupt ends the workers at once, in the middle of their files."""
    others = set(multiprocessing.active_children())
    try:
        yield
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise


def _alone(source: Source, read: Read) -> Outcome:
    """Read in a process of its own, so that the file that kills its reader is known."""
    try:
        with _pool(1) as pool, _ended_with_us(pool):
            with _starting():
                future = pool.submit(read, source)
            return future.result()
    except BrokenProcessPool:
        return Refused(source, _DIED)
