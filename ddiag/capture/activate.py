"""From "torch is imported" to "this process trains": when recording begins, and how it ends.

A process records once it has called ``init_process_group``, or at its first optimizer step; so launchers, data-loader
workers and helpers never do (torch's helper that saves checkpoints joins a group: it is known by its name). A forked
child falls asleep (it would write into its parent's ring) and wakes up only if it joins a job itself.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ddiag.capture import door, recorder, uncaught
from ddiag.capture.clock import now_ns
from ddiag.capture.door import DOOR, quietly
from ddiag.capture.hooks import ALWAYS, WATCHED, hook_module
from ddiag.capture.identity import Identity, identity, is_helper
from ddiag.capture.imports import Imports
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.folder import DISABLE_VARIABLE, ERRORS, process_files

MAX_FAILURES = 5
"""In a row; then recording is given up."""


class Activation:
    """Where this process stands."""

    def __init__(self) -> None:
        self.run: Path | None = None
        self.patches = Patches()
        self.imports = Imports()
        self.identity: Identity | None = None
        self._turns = 0
        self._failures = 0
        self._at_fork = False

    def start(self, run: Path) -> None:
        """Watch torch for signs of training; record into *run* when they come."""
        if self.run is not None or os.environ.get(DISABLE_VARIABLE) == "1":
            return
        self.run = run
        self.imports.when_imported("torch.compiler", _know_compiling)
        for module, hook in WATCHED:
            self.imports.when_imported(module, partial(self._install, hook))
        if not self._at_fork:
            self._at_fork = True
            os.register_at_fork(after_in_child=self.sleep)
        atexit.unregister(_outlast)
        atexit.register(_outlast)  # first: it is called last, and also when this recording was stopped long before
        atexit.register(self.exiting)

    def _install(self, hook: str, module: ModuleType) -> None:
        hook_module(hook).install(module, self.patches)

    def joined(self) -> None:
        """``init_process_group`` has returned, or an optimizer steps: begin, or begin anew as another rank."""
        if self.run is None:
            return
        with quietly("activate"):
            if is_helper():
                self.run = None
                return
            who = identity()
            if recorder.current is not None and who == self.identity:
                return
            if self._failures >= MAX_FAILURES:
                self.run = None
                return
            self._failures += 1
            self._begin(self.run, who)
            self._failures = 0

    def _begin(self, run: Path, who: Identity) -> None:
        if recorder.current is not None:
            recorder.current.close()
        files = process_files(run, attempt=who.attempt, rank=who.rank, pid=os.getpid(), turn=self._turns)
        self._turns += 1
        began = now_ns()
        DOOR.report_to(run / ERRORS, rank=who.rank)
        active = Recorder(files, who)
        self.identity = who
        recorder.current = active
        for hook in dict.fromkeys([*(hook for _, hook in WATCHED), *ALWAYS]):
            with quietly(f"{hook}.activated"):
                activated = getattr(hook_module(hook), "activated", None) if _loaded(hook) else None
                if activated is not None:
                    activated(active)
        active.facts.write("process", **_process_facts(), attempt=who.attempt)
        active.facts.write("activated", took_ns=now_ns() - began)

    def sleep(self) -> None:
        """In a forked child: not a rank, until it says so."""
        active, recorder.current = recorder.current, None
        self.identity = None
        self._turns = 0
        DOOR.forget()
        if active is not None:
            with quietly("sleep"):
                active.detach()

    def exiting(self) -> None:
        """The interpreter ends, by itself or because of an exception."""
        if recorder.current is not None:
            with quietly("last exception"):
                uncaught.tell(recorder.current)
        self.finish()

    def finish(self) -> None:
        """Nothing more is recorded."""
        active, recorder.current = recorder.current, None
        if active is not None:
            with quietly("finish"):
                active.close()

    def stop(self) -> list[str]:
        """Everything back as it was; what could not be put back (somebody wrapped it since)."""
        self.finish()
        atexit.unregister(self.exiting)
        self.imports.remove()
        left = self.patches.restore()
        self.run, self.identity = None, None
        return left


def _loaded(hook: str) -> bool:
    return hook in ALWAYS or f"ddiag.capture.hooks.{hook}" in sys.modules


def _outlast() -> None:
    following = sys.modules.get("ddiag.capture.hooks.following")
    if following is not None:
        with quietly("outlast"):
            world = sys.modules["torch.distributed.distributed_c10d"]._world
            following.outlast(sys.modules["torch.version"].__version__, world.pg_map)


def _know_compiling(module: Any) -> None:
    # Not ``is_compiling``, which asks three modules at every call.
    door.compiling = getattr(module, "is_dynamo_compiling", module.is_compiling)


def _process_facts() -> dict[str, Any]:
    """Only a process that trains needs what tells them."""
    from ddiag.capture.process_facts import process_facts

    return process_facts()


ACTIVATION = Activation()
"""The process's own."""
