"""The supervisor's door: whatever goes wrong in our own work is told, and the job goes on (or starts) all the same."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ddiag.schema.folder import ERRORS

T = TypeVar("T")


class Door:
    """Carries out our own work; *say* shows one line to the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.run: Path | None = None
        """Where problems are written down as well, once there is a run folder."""

    def attempt(self, what: str, work: Callable[[], T]) -> T | None:
        """The result of *work*, or None when it failed, which is told."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - nothing of ours may stop the job or change how it ends
            self.say(f"cannot {what}: {type(error).__name__}: {error}")
            self._write_down(what, error)
            return None

    def _write_down(self, what: str, error: Exception) -> None:
        if self.run is None:
            return
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
        problem = {"t": time.time_ns(), "pid": os.getpid(), "where": f"supervisor: {what}", "error": repr(error)[:500]}
        try:
            with (self.run / ERRORS).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**problem, "trace": trace[-3000:]}) + "\n")
        except OSError:
            self.run = None  # the folder cannot be written, as the user has just been told
