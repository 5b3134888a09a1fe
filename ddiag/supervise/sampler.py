"""The sampler: a process of lowest priority that looks at host and devices once a second until the job has ended.

It is a fork of the supervisor in a session of its own, so that signals for the job do not reach it; it outlives a
supervisor that is killed. It measures its own cost, and looks less often rather than take more than one percent of a
core.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which
from typing import Any

from ddiag.schema.folder import samples_file
from ddiag.schema.samples import header
from ddiag.supervise.devices import Devices, NoDevicesError
from ddiag.supervise.door import Door
from ddiag.supervise.exits import Exits
from ddiag.supervise.host_counters import HostCounters
from ddiag.supervise.processes import JobProcesses, read_stat
from ddiag.supervise.sample_file import SampleFile
from ddiag.supervise.signals import close_others
from ddiag.supervise.slow_steps import SlowSteps

MAX_SHARE = 0.01
"""Of a core."""
_AFFINITY_EVERY = 30
_TOPOLOGY_LIMIT_S = 20
_POLL_S = 0.25
"""How soon the end of the job is noticed."""


@dataclass(frozen=True)
class Watched:
    """The job, as the sampler needs to know it."""

    run: Path
    host: str
    root: int
    """Pid of the job's first process."""
    interval_s: float
    profile_slow: bool = False
    """Ask for a profiler window when steps become slow."""


def start_sampler(watched: Watched) -> int | None:
    """Fork the sampler, and return its pid; None when another supervisor of this host samples already."""
    first = header(host=watched.host, wall_ns=time.time_ns(), interval_s=watched.interval_s, cpus=os.cpu_count() or 1)
    try:
        file = SampleFile(samples_file(watched.run, watched.host), first)
    except FileExistsError:
        return None
    pid = os.fork()
    if pid == 0:
        _be_sampler(watched, file)
    file.close()
    return pid


def stop_sampler(pid: int) -> None:
    """The job has ended: let it take the last sample and end."""
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + 2.0
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.01)


def _be_sampler(watched: Watched, file: SampleFile) -> None:
    """The sampler's whole life; never returns."""
    try:
        os.setsid()
        os.nice(19)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        close_others({0, 1, 2, file.number})
        door = Door(lambda _: None)
        door.run = watched.run
        door.attempt("sample", lambda: Sampler(watched, file).run())
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


class Sampler:
    """Samples until the job's first process is gone or SIGTERM says so."""

    def __init__(self, watched: Watched, file: SampleFile) -> None:
        self._watched = watched
        self._file = file
        self._host = HostCounters()
        self._processes = JobProcesses(watched.run, watched.root)
        self._exits = Exits(watched.root)
        self._devices: Devices | None = None
        self._slow = SlowSteps(watched.run) if watched.profile_slow else None
        self._taken = 0
        stat = read_stat(watched.root)
        self._root_ticks = stat.start_ticks if stat is not None else -1

    def run(self) -> None:
        """The loop. SIGTERM is held back (the supervisor holds it too) and looked for between samples."""
        self._tell_facts()
        supervisor = os.getppid()
        due = time.monotonic()
        while True:
            began = time.process_time()
            self.sample()
            cost_s = time.process_time() - began
            due = max(due + self._watched.interval_s, time.monotonic() + cost_s / MAX_SHARE - cost_s)
            if self._told_to_end(due):
                break
        for ended in self._exits.wait(0.0):
            self._tell("exit", **ended)
        self.sample()
        self._tell("end", taken=self._taken, orphaned=os.getppid() != supervisor)

    def _told_to_end(self, due: float) -> bool:
        """Wait until *due*, telling of ranks that end; whether the job has ended meanwhile."""
        while True:
            left = due - time.monotonic()
            for ended in self._exits.wait(max(0.0, min(left, _POLL_S))):
                self._tell("exit", **ended)
            if signal.sigtimedwait({signal.SIGTERM}, 0) is not None:
                return True
            stat = read_stat(self._watched.root)
            if stat is None or stat.start_ticks != self._root_ticks or stat.state == "Z":
                return True
            if left <= 0:
                return False

    def sample(self) -> None:
        """One line, and whatever facts are new."""
        line: dict[str, Any] = {"mono": time.monotonic_ns(), **self._host.read(), **self._processes.read()}
        if self._devices is not None:
            line["devices"] = self._devices.read()
        self._tell("sample", **line)
        for pid, rank in self._processes.ranks.items():
            self._exits.watch(pid, rank)
        if self._devices is not None:
            for event in self._devices.events():
                self._tell(event.pop("kind"), **event)
        request = self._slow.look() if self._slow is not None else None
        if request is not None:
            self._tell("profile_request", **asdict(request))
        if self._taken % _AFFINITY_EVERY in (0, 5):
            for change in self._processes.affinity_changes():
                self._tell("affinity", **change)
        self._taken += 1

    def _tell(self, kind: str, **values: Any) -> None:
        self._file.write({"t": time.time_ns(), "kind": kind, **values})

    def _tell_facts(self) -> None:
        """Devices, ports, topology: once."""
        try:
            self._devices = Devices()
            self._tell("devices", devices=self._devices.facts(), **self._devices.software())
        except NoDevicesError as why:
            self._tell("devices", devices=[], why=str(why))
        ports = self._host.port_facts()
        if ports:
            self._tell("ib_ports", ports=ports)
        if self._devices is not None:
            topology = _topology()
            if topology:
                self._tell("topology", text=topology)


def _topology() -> str:
    """``nvidia-smi topo -m``: how devices and NICs hang together."""
    program = which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "topo", "-m"],
            capture_output=True,
            text=True,
            timeout=_TOPOLOGY_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return done.stdout if done.returncode == 0 else ""
