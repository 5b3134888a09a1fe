"""Whether the ranks of this host go on, read from the live words of their rings.

A ring is mapped, not asked: a rank that is stopped, killed or holds the GIL shows just the same that nothing of it
begins or ends any more.
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddiag.errors import InputError
from ddiag.schema.folder import ProcessFiles, find_processes
from ddiag.schema.phases import Phase
from ddiag.schema.ring import HEADER_BYTES, Live, RingHeader, unpack_header, unpack_live
from ddiag.schema.steps import HEADER_BYTES as STEPS_HEADER_BYTES
from ddiag.schema.steps import RECORD_BYTES as STEP_BYTES
from ddiag.schema.steps import StepFlag, StepRecord, unpack
from ddiag.supervise.processes import read_stat

_RECENT = 20
_LONG_PHASES: Mapping[int, str] = {
    Phase.CHECKPOINT: "checkpoint",
    Phase.EVALUATION: "evaluation",
    Phase.COMPILE: "compile",
}
_LONG_STEPS = (
    (StepFlag.CHECKPOINT, "checkpoint"),
    (StepFlag.EVALUATION, "evaluation"),
    (StepFlag.COMPILED, "compile"),
    (StepFlag.PROFILED, "profile"),
)
FIRST_STEP = "first step"
_SEARCH_S, _EARLY_SEARCH_S, _EARLY_S = 10.0, 2.0, 60.0


@dataclass(frozen=True)
class Standing:
    """One rank right now."""

    rank: int
    pid: int
    quiet_s: float
    """Since something of it last began or ended."""
    usual_s: float
    """Its longest plain step of late; 0 before there is one."""
    busy_with: str = ""
    """What takes long without being a hang: ``first step``, ``checkpoint``, ``evaluation``, ``compile``; or nothing."""
    longest_s: float = 0.0
    """The longest step with such work so far."""
    alive: bool = True
    stopped: bool = False
    """By SIGSTOP, Ctrl-Z or a debugger."""


@dataclass
class LocalRank:
    """A training process of this host."""

    files: ProcessFiles
    header: RingHeader
    live_words: mmap.mmap
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    longest_s: dict[str, float] = field(default_factory=dict)
    _read_bytes: int = STEPS_HEADER_BYTES

    @property
    def rank(self) -> int:
        return self.header.rank

    @property
    def pid(self) -> int:
        return self.header.pid

    @property
    def live(self) -> Live:
        return unpack_live(self.live_words[:])

    @property
    def alive(self) -> bool:
        stat = read_stat(self.pid)
        return stat is not None and stat.start_ticks == self.header.start_ticks and stat.state not in "ZX"

    def progress_ns(self) -> int:
        """When something of it last began or ended, on the host's monotonic clock."""
        live = self.live
        return max(live.progress_ns, live.phase_since_ns, self.header.mono_ns)

    def standing(self, now_ns: int, *, not_before_ns: int = 0) -> Standing:
        """*not_before_ns*: until then the whole job was stopped, which counts for nothing."""
        live, stat = self.live, read_stat(self.pid)
        ours = stat is not None and stat.start_ticks == self.header.start_ticks
        busy = FIRST_STEP if live.step == 0 else _LONG_PHASES.get(live.phase, "")
        return Standing(
            rank=self.rank,
            pid=self.pid,
            quiet_s=max(0.0, (now_ns - max(self.progress_ns(), not_before_ns)) / 1e9),
            usual_s=max(self.recent_s, default=0.0),
            busy_with=busy,
            longest_s=self.longest_s.get(busy, 0.0),
            alive=ours and stat is not None and stat.state not in "ZX",
            stopped=ours and stat is not None and stat.state in "tT",
        )

    def learn(self) -> None:
        """Read the summaries of steps that have ended since the last look."""
        for step in self._new_steps():
            took_s = (step.end_ns - step.start_ns) / 1e9
            kinds = [word for flag, word in _LONG_STEPS if step.flags & flag]
            for kind in kinds:
                self.longest_s[kind] = max(took_s, self.longest_s.get(kind, 0.0))
            if not kinds and step.step > 0:
                self.recent_s.append(took_s)

    def _new_steps(self) -> list[StepRecord]:
        try:
            with self.files.steps.open("rb") as file:
                head = file.read(STEPS_HEADER_BYTES)
                file.seek(self._read_bytes)
                new = file.read()
            found = unpack(head + new[: len(new) // STEP_BYTES * STEP_BYTES])
        except (OSError, InputError):
            return []  # not there yet
        self._read_bytes += len(found) * STEP_BYTES
        return found


class LocalRanks:
    """The training processes of this host, of the newest start of the job."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._began = time.monotonic()
        self._searched = -_SEARCH_S
        self._looked_at: set[Path] = set()
        self._found: dict[int, LocalRank] = {}
        """By pid; the newest recording of a process."""

    def look(self) -> list[LocalRank]:
        """Those that have not ended their recording in good order, by rank."""
        now = time.monotonic()
        early = now - self._began < _EARLY_S
        if now - self._searched >= (_EARLY_SEARCH_S if early else _SEARCH_S):
            self._searched = now
            self._search()
        for one in self._found.values():
            one.learn()
        return [one for one in self.all() if not one.live.closed_ns]

    def all(self) -> list[LocalRank]:
        """Those that have ended too."""
        newest = max((one.files.attempt for one in self._found.values()), default=0)
        return sorted((one for one in self._found.values() if one.files.attempt == newest), key=lambda one: one.rank)

    def _search(self) -> None:
        for files in find_processes(self._run):
            if files.ring in self._looked_at:
                continue
            stat = read_stat(files.pid)
            try:
                with files.ring.open("rb") as ring:
                    header = unpack_header(ring.read(HEADER_BYTES))
                    if stat is not None and stat.start_ticks == header.start_ticks:
                        words = mmap.mmap(ring.fileno(), HEADER_BYTES, access=mmap.ACCESS_READ)
                        self._found[files.pid] = LocalRank(files, header, words)
            except (OSError, ValueError, InputError):
                continue  # being written right now
            self._looked_at.add(files.ring)
