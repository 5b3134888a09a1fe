"""The job's processes on this host: which are ranks, which are their data-loader workers, and what they use.

The tree is walked every :data:`SEARCH_S` (reading all of /proc is dear); in between only known processes are read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddiag.errors import InputError
from ddiag.schema.folder import find_processes
from ddiag.schema.ring import HEADER_BYTES, unpack_header
from ddiag.supervise.proc import PAGE, TICK_NS, read_text

SEARCH_S = 10.0
LOADER = "pt_data_worker"
"""What torch calls its loader's workers (2.6 and later)."""
_FIRST_SEARCHES_S = 2.0
_EARLY_S = 60.0


@dataclass
class Usage:
    """One process, or several together; ``cpu_ns`` only grows, also when one of several ends."""

    cpu_ns: int = 0
    rss_bytes: int = 0
    processes: int = 0
    running: int = 0
    blocked: int = 0
    _seen: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        self.rss_bytes = self.processes = self.running = self.blocked = 0

    def add(self, pid: int, stat: Stat) -> None:
        self.processes += 1
        self.rss_bytes += stat.rss_bytes
        self.running += stat.state in "RD"
        self.blocked += stat.state == "D"
        self.cpu_ns += max(0, stat.cpu_ns - self._seen.get(pid, 0))
        self._seen[pid] = stat.cpu_ns


@dataclass(frozen=True)
class Stat:
    """/proc/PID/stat."""

    name: str
    state: str
    parent: int
    major_faults: int
    cpu_ns: int
    threads: int
    start_ticks: int
    rss_bytes: int
    cpu: int
    exit_status: int
    """As wait() gives it, of a process that has ended and not been waited for; else 0."""


def read_stat(pid: int) -> Stat | None:
    """None when the process is gone."""
    named, _, rest = read_text(f"/proc/{pid}/stat").rpartition(")")
    words = rest.split()
    if len(words) < 50:
        return None
    return Stat(
        name=named.partition("(")[2],
        state=words[0],
        parent=int(words[1]),
        major_faults=int(words[9]),
        cpu_ns=(int(words[11]) + int(words[12])) * TICK_NS,
        threads=int(words[17]),
        start_ticks=int(words[19]),
        rss_bytes=int(words[21]) * PAGE,
        cpu=int(words[36]),
        exit_status=int(words[49]),
    )


class JobProcesses:
    def __init__(self, run: Path, root: int) -> None:
        self._run = run
        self._root = root
        self._began = time.monotonic()
        self._searched = -SEARCH_S
        self.ranks: dict[int, int] = {}
        """pid -> rank, of every training process found so far."""
        self._looked_at: set[Path] = set()
        self._members: dict[int, int] = {}
        """pid -> pid of the rank it works for, its own for a rank, 0 for any other process of the job."""
        self._workers: dict[int, Usage] = {}
        self._loaders: dict[int, Usage] = {}
        """Those of the workers that are a data loader's."""
        self._others = Usage()
        self._affinity: dict[int, str] = {}

    def read(self) -> dict[str, Any]:
        """``ranks`` and ``others`` of a sample."""
        now = time.monotonic()
        early = now - self._began < _EARLY_S
        if early:
            self._find_ranks()  # one that fails soon is to be seen before it is gone
        if now - self._searched >= (_FIRST_SEARCHES_S if early else SEARCH_S):
            self._searched = now
            self._search()
        for usage in (self._others, *self._workers.values(), *self._loaders.values()):
            usage.begin()
        ranks = {}
        for pid, owner in list(self._members.items()):
            stat = read_stat(pid)
            if stat is None or stat.state in "ZX":
                del self._members[pid]
            elif owner == pid:
                ranks[pid] = stat
            elif owner:
                self._workers.setdefault(owner, Usage()).add(pid, stat)
                if stat.name == LOADER:
                    self._loaders.setdefault(owner, Usage()).add(pid, stat)
            else:
                self._others.add(pid, stat)
        others = self._others
        return {
            "ranks": [self._rank(pid, stat) for pid, stat in ranks.items()],
            "others": [others.processes, others.cpu_ns, others.rss_bytes],
        }

    def _rank(self, pid: int, stat: Stat) -> list[Any]:
        """As in ``RANK_FIELDS``."""
        workers, loaders = self._workers.get(pid) or Usage(), self._loaders.get(pid) or Usage()
        return [
            *(
                pid,
                self.ranks[pid],
                stat.cpu_ns,
                stat.rss_bytes,
                stat.threads,
                stat.state,
                stat.cpu,
                stat.major_faults,
            ),
            *(workers.processes, workers.cpu_ns, workers.rss_bytes, workers.running),
            *(loaders.processes, loaders.cpu_ns, loaders.running - loaders.blocked, loaders.blocked),
        ]

    def affinity_changes(self) -> list[dict[str, Any]]:
        """Where ranks may run, told when they are new or it has changed."""
        changed = []
        for pid in [pid for pid, owner in self._members.items() if pid == owner]:
            status = read_text(f"/proc/{pid}/status")
            cpus, memory = _listed(status, "Cpus_allowed_list"), _listed(status, "Mems_allowed_list")
            if cpus and self._affinity.get(pid) != cpus + memory:
                self._affinity[pid] = cpus + memory
                changed.append({"pid": pid, "rank": self.ranks[pid], "cpus": cpus, "numa_nodes": memory})
        return changed

    def _search(self) -> None:
        self._find_ranks()
        parents = {pid: stat.parent for pid in _all_pids() if (stat := read_stat(pid)) is not None}
        for pid in parents:
            owner = self._owner(pid, parents)
            if owner is not None:
                self._members[pid] = owner
        self._workers = {pid: usage for pid, usage in self._workers.items() if pid in parents}
        self._loaders = {pid: usage for pid, usage in self._loaders.items() if pid in parents}

    def _owner(self, pid: int, parents: dict[int, int]) -> int | None:
        """0 for a process of the job that works for no rank, None for one that is not of the job."""
        at, climbed = pid, 0
        while at > 1 and climbed < 100:
            if at in self.ranks:
                return at
            if at == self._root or (at != pid and self._members.get(at) == 0):
                return 0
            at, climbed = parents.get(at, 0), climbed + 1
        return self._members.get(pid)

    def _find_ranks(self) -> None:
        """Training processes are those that keep a ring; its header tells whether the process is this host's."""
        for files in find_processes(self._run):
            if files.ring in self._looked_at:
                continue
            stat = read_stat(files.pid)
            try:
                if stat is not None and _start_ticks(files.ring) == stat.start_ticks:
                    self.ranks[files.pid] = files.rank
            except (OSError, InputError):
                continue  # being written right now
            self._looked_at.add(files.ring)


def _start_ticks(ring: Path) -> int:
    with ring.open("rb") as file:
        return unpack_header(file.read(HEADER_BYTES)).start_ticks


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _listed(status: str, name: str) -> str:
    _, found, rest = status.partition(f"\n{name}:")
    return rest.split("\n", 1)[0].strip() if found else ""
