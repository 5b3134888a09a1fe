"""``ddiag.record()``: recording from within a script, for who cannot change the launch line.

>>> import ddiag
>>> ddiag.record()  # until the process ends; under `ddiag run` it changes nothing
>>> with ddiag.record(name="warm-up"):  # or for a while; what was patched is put back at the end
...     train()
>>> @ddiag.record()
... def main(): ...
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from ddiag.capture import recorder
from ddiag.capture.activate import ACTIVATION
from ddiag.capture.door import quietly
from ddiag.capture.identity import start_ticks
from ddiag.schema.folder import (
    DISABLE_VARIABLE,
    RUN_JSON,
    Manifest,
    folder_name,
    read_manifest,
    write_manifest,
)
from ddiag.schema.phases import Phase
from ddiag.schema.placement import settle
from ddiag.schema.secrets import redact_argv

Function = TypeVar("Function", bound=Callable[..., Any])

_STORE_KEY = "ddiag/run"


class Recording:
    """A recording of this process. Every method is harmless when nothing is recorded."""

    def __init__(self, out: str | os.PathLike[str], name: str | None) -> None:
        self._out = Path(out)
        self._name = name or Path(sys.argv[0] or "python").stem
        self._mine = False
        self._wrote_manifest = False

    @property
    def run(self) -> Path | None:
        """The run folder."""
        return ACTIVATION.run

    def start(self) -> Recording:
        """Begin, unless ``ddiag run`` (or an earlier call) already has."""
        with quietly("record"):
            if ACTIVATION.run is None and os.environ.get(DISABLE_VARIABLE) != "1":
                self._begin()
        return self

    def stop(self) -> None:
        """End, and put back everything that was patched."""
        if not self._mine:
            return
        self._mine = False
        atexit.unregister(self.stop)
        with quietly("record"):
            run = ACTIVATION.run
            ACTIVATION.stop()
            if run is not None:
                settle(run, pid=os.getpid())
            if run is not None and self._wrote_manifest:
                write_manifest(run, replace(read_manifest(run), end_wall_ns=time.time_ns()))

    def step(self) -> None:
        """Say that a training step ends here; for loops whose optimizer is none of torch's."""
        with quietly("record.step"):
            if recorder.current is None:
                ACTIVATION.joined()
            if recorder.current is not None:
                recorder.current.engine_step()

    def phase(self, name: str) -> _NamedPhase:
        """``with recording.phase("input"): …`` names what ddiag cannot see: input, forward, evaluation, checkpoint …"""
        known = [one.name.lower() for one in Phase if one is not Phase.NONE]
        if name.lower() not in known:
            raise ValueError(f"no phase {name!r}; there are {', '.join(known)}")
        return _NamedPhase(Phase[name.upper()])

    def _begin(self) -> None:
        run = _agreed(self._out.absolute() / _common_name(self._name))
        run.mkdir(parents=True, exist_ok=True)
        self._wrote_manifest = self._describe(run)
        self._mine = True
        ACTIVATION.start(run)
        atexit.register(self.stop)
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            ACTIVATION.joined()

    def _describe(self, run: Path) -> bool:
        """Write the manifest; False when another rank has."""
        try:
            os.close(os.open(run / RUN_JSON, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        manifest = Manifest(
            ddiag_version=_version(),
            name=self._name,
            argv=redact_argv(sys.argv),
            launcher="api",
            start_wall_ns=time.time_ns(),
            host=socket.gethostname(),
            supervisor_pid=os.getpid(),
            supervisor_start_ticks=start_ticks(),
        )
        write_manifest(run, manifest)
        return True

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.stop()
        return False

    def __call__(self, function: Function) -> Function:
        """As a decorator: record while *function* runs."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]


class _NamedPhase:
    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._token = -1
        self._active: recorder.Recorder | None = None

    def __enter__(self) -> None:
        self._active = recorder.current
        with quietly("record.phase"):
            self._token = -1 if self._active is None else self._active.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        with quietly("record.phase"):
            if self._active is not None:
                self._active.leave(self._token, kind is not None)
        return False


def record(out: str | os.PathLike[str] = "ddiag-runs", *, name: str | None = None) -> Recording:
    """Record this process into a run folder under *out*, from now until it ends (or until :meth:`Recording.stop`).

    Used as a decorator, recording begins now as well, and ends with the first call of the function.
    """
    return Recording(out, name).start()


def _common_name(name: str) -> str:
    """The same for all ranks of a node: they share the process that started them."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    launched = "LOCAL_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ
    pid = (parent.pid if parent is not None else os.getppid() if launched else None) or os.getpid()
    return folder_name(name, wall_ns=_started_ns(pid), pid=pid)


def _started_ns(pid: int) -> int:
    """When process *pid* started, to the second; every process computes the same."""
    ticks = start_ticks(pid)
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    except (OSError, StopIteration, ValueError):
        return time.time_ns()
    return booted * 10**9 + ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def _agreed(path: Path) -> Path:
    """What the first rank to ask proposed, through the job's own store: no collective, nobody waits for anybody."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return path
    store = dist.distributed_c10d._get_default_store()
    return Path(store.compare_set(_STORE_KEY, "", str(path)).decode())


def _version() -> str:
    try:
        return version("ddiag")
    except PackageNotFoundError:
        return "0+unknown"
