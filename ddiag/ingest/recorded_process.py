"""One training process as its files tell it: its rings, step summaries, names and facts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from ddiag.errors import InputError
from ddiag.ingest.recorded_facts import ProcessFacts, read_facts
from ddiag.ingest.recorded_files import ProcessSources
from ddiag.ingest.recorded_tables import Context, summaries, tables_of
from ddiag.ingest.rings import RECORD, Records, Ring, read_ring
from ddiag.ingest.step_file import RECORD as SUMMARY
from ddiag.ingest.step_file import StepFile, Summaries, read_steps
from ddiag.schema.names import decode as decode_names
from ddiag.schema.phases import Kind

_OUR_ROOM = "/ddiag/capture/"
"""Stand-ins of the recorder's are nobody's own code."""
_FATAL_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)
_FATAL_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_CLOCK_STEPS = 64
"""Summaries the clocks are compared by: the last ones, next to what the ring still holds."""


@dataclass(frozen=True)
class Process:
    """What one process left, before its times are put on the common clock."""

    sources: ProcessSources
    rank: int
    pid: int
    attempt: int
    world_size: int | None
    local_rank: int | None
    main_tid: int | None
    rings: tuple[Ring, ...]
    steps: StepFile | None
    names: tuple[str, ...]
    facts: ProcessFacts
    notes: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()
    """Frames in which a fatal signal met it, innermost first: ``file:line in function``."""

    @property
    def closed(self) -> bool:
        """It ended in good order."""
        return bool(self.rings) and self.rings[0].closed

    @property
    def step_count(self) -> int:
        return 0 if self.steps is None else int(self.steps.records.size)

    @property
    def records(self) -> Records:
        """Of both rings."""
        return np.concatenate([ring.records for ring in self.rings]) if self.rings else np.empty(0, RECORD)

    @property
    def record_count(self) -> int:
        return sum(int(ring.records.size) for ring in self.rings)

    @property
    def dropped(self) -> int:
        """Records that were taken and cannot be used; overwritten ones are not among them."""
        return sum(ring.torn + ring.live.dropped for ring in self.rings) + (self.steps.damaged if self.steps else 0)

    @property
    def clock_offset_ns(self) -> int:
        """Unix time minus monotonic time, as the process saw it last."""
        if self.steps is not None and self.steps.records.size:
            last = self.steps.records[-_CLOCK_STEPS:]
            return int(np.sort(last["wall_end_ns"] - last["end_ns"])[last.size // 2])
        header = self.rings[0].header if self.rings else self.steps
        return 0 if header is None else header.wall_ns - header.mono_ns

    @property
    def span(self) -> tuple[int, int]:
        """Monotonic ns of the first and last sign of life."""
        at = [moment for ring in self.rings for moment in _moments(ring)]
        if self.steps is not None and self.steps.records.size:
            at += [int(self.steps.records["start_ns"][0]), int(self.steps.records["end_ns"][-1])]
        return (min(at), max(at)) if at else (0, 0)

    @property
    def whole_from_ns(self) -> int:
        """Monotonic ns from which on every record is still there."""
        begins = [int(ring.records["enqueue_ns"][0]) for ring in self.rings if ring.overwritten]
        return max([*begins, self.span[0]])


def _moments(ring: Ring) -> list[int]:
    if not ring.records.size:
        return [ring.live.progress_ns] if ring.live.progress_ns else []
    ends = ring.records["end_ns"].max()
    return [int(ring.records["enqueue_ns"].min()), max(int(ring.records["enqueue_ns"].max()), int(ends))]


def read_process(sources: ProcessSources) -> Process:
    """Read the files of one process; raises :class:`~ddiag.errors.InputError` when none of them says anything."""
    trouble: list[str] = []
    rings = [ring for suffix in (".ring", ".native.ring") if (ring := _ring(sources, suffix, trouble)) is not None]
    steps = _steps(sources, trouble)
    if not rings and steps is None:
        raise InputError(trouble[0] if trouble else f"{sources.stem}: nothing in it")
    names = sources.read(".names")
    if names is None:
        trouble.append("its .names is missing: groups and labels have numbers only")
    facts = read_facts(sources.read(".facts.jsonl") or b"")
    header = rings[0].header if rings else None
    known = header or steps
    assert known is not None
    return Process(
        sources=sources,
        rank=known.rank,
        pid=known.pid,
        attempt=known.attempt,
        world_size=header.world_size if header else None,
        local_rank=header.local_rank if header else None,
        main_tid=_training_thread(rings),
        rings=tuple(rings),
        steps=steps,
        names=tuple(decode_names(names)) if names is not None else (),
        facts=facts,
        notes=tuple(trouble + _what_is_odd(rings, steps)),
        fatal=_fatal_frames(sources.read(".fatal") or b""),
    )


def _fatal_frames(data: bytes) -> tuple[str, ...]:
    """Of the thread that the signal met, else (it was none of Python's) of the main thread, which comes last."""
    threads = _FATAL_THREAD.split(data.decode("utf-8", "replace"))[1:]
    stacks = dict(zip(threads[::2], threads[1::2], strict=True))
    chosen = stacks.get("Current thread", threads[-1] if threads else "")
    frames = [match for match in _FATAL_FRAME.finditer(chosen) if _OUR_ROOM not in match["file"]]
    return tuple(f"{match['file']}:{match['line']} in {match['name']}" for match in frames)


def _ring(sources: ProcessSources, suffix: str, trouble: list[str]) -> Ring | None:
    """The ring, read twice when it may still be written."""
    data = sources.read(suffix)
    if data is None:
        return None
    source = sources.files[suffix].label
    try:
        ring = read_ring(data, source=source)
        return ring if ring.closed else read_ring(data, again=sources.read(suffix), source=source)
    except InputError as error:
        trouble.append(str(error))
        return None


def _steps(sources: ProcessSources, trouble: list[str]) -> StepFile | None:
    data = sources.read(".steps")
    if data is None:
        trouble.append("its .steps is missing: only what the ring still holds is known")
        return None
    try:
        return read_steps(data, source=sources.files[".steps"].label)
    except InputError as error:
        trouble.append(str(error))
        return None


def _training_thread(rings: list[Ring]) -> int | None:
    """The thread that most phases ran on: training may move to another than the one that began to record."""
    if not rings:
        return None
    records = rings[0].records
    threads, counts = np.unique(records["thread"][records["kind"] == Kind.PHASE], return_counts=True)
    return int(threads[counts.argmax()]) if threads.size else rings[0].header.main_tid


def _what_is_odd(rings: list[Ring], steps: StepFile | None) -> list[str]:
    notes = []
    for ring in rings:
        if ring.missing_bytes:
            notes.append(f"the ring is {ring.missing_bytes:,} bytes short: what is there is used")
        if ring.torn:
            notes.append(f"{ring.torn} record(s) were being written when it was read, or when the process died")
        if ring.live.dropped:
            notes.append(f"{ring.live.dropped:,} record(s) were dropped while recording")
        if ring.live.errors:
            notes.append(f"the recorder caught {ring.live.errors} error(s) of its own")
    if steps is not None and steps.cut_bytes:
        notes.append("the last step summary was not written whole")
    return notes


@dataclass(frozen=True)
class Placed:
    """A process with its times on the common clock, as tables."""

    process: Process
    offset_ns: int
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)


def place(process: Process, offset_ns: int) -> Placed:
    """The tables of *process*, its times shifted by *offset_ns* to Unix time."""
    sizes = {name: group.size for name, group in process.facts.groups.items() if group.size is not None}
    members = {name: group.ranks for name, group in process.facts.groups.items()}
    context = Context(process.rank, process.names, offset_ns, sizes, members, process.facts.backends)
    tables = tables_of(process.records, context) if process.record_count else {}
    records = process.steps.records if process.steps is not None else _from_ring(process)
    if records.size:
        tables["step_summaries"] = summaries(records, process.rank, offset_ns)
    return Placed(process, offset_ns, tables)


def _from_ring(process: Process) -> Summaries:
    """Without a ``.steps`` file: what STEP records say; the rest is unknown."""
    records = process.records
    steps = records[records["kind"] == Kind.STEP]
    found = np.zeros(steps.size, dtype=SUMMARY)
    if not steps.size:
        return found
    for name, source in (("step", "step"), ("start_ns", "start_ns"), ("end_ns", "end_ns"), ("flags", "flags")):
        found[name] = steps[source]
    for name in ("rss_bytes", "rss_peak_bytes", "device_allocated_bytes", "device_reserved_bytes", "alloc_retries"):
        found[name] = -1
    for name in ("device_peak_allocated_bytes", "device_peak_reserved_bytes", "loader_queue", "loader_workers"):
        found[name] = -1
    found["micro_steps"], found["comm_bytes"] = steps["micro_step"], steps["bytes_in"]
    found["loss_scale"] = found["grad_norm"] = np.nan
    return found[np.argsort(found["end_ns"], kind="stable")]
