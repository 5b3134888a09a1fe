"""The one door through which the recorder's own trouble leaves: caught, counted, reported into the run folder.

Nothing of ours may raise into a training job, so everything torch calls of ours passes one of these forms:

* :func:`around`: a replacement of a function that calls something of ours before and after the original;
* :func:`guarded` and :func:`callback`: what we hand to torch or to Python to be called;
* :func:`quietly`: a block of slow work (installing, activating, closing).

A hook that fails :data:`MAX_FAILURES` times is switched off for good. Reports go to ``errors.jsonl`` of the run folder,
never to stdout or stderr, unless ``DDIAG_DEBUG=1``.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddiag.schema.folder import DEBUG_VARIABLE

MAX_FAILURES = 5
MAX_REPORTS = 40
"""Per process; the count goes on."""


class Hook:
    """One place where torch or Python calls us, and how it fares."""

    __slots__ = ("failures", "live", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0
        self.live = True


class Door:
    def __init__(self) -> None:
        self.errors = 0
        self.hooks: dict[str, Hook] = {}
        self.on_error: Callable[[int], None] | None = None
        self._path: Path | None = None
        self._waiting: list[bytes] = []
        self._who: dict[str, int] = {}

    def hook(self, name: str) -> Hook:
        return self.hooks.setdefault(name, Hook(name))

    def report_to(self, path: Path, *, rank: int) -> None:
        """From now on reports are appended to *path*, and so are those that came too early for it."""
        self._path = path
        self._who = {"rank": rank}
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            self._write(line)

    def forget(self) -> None:
        """In a forked child: its trouble is its own."""
        self._path, self.on_error, self.errors = None, None, 0
        self._waiting.clear()

    def failed(self, hook: Hook, error: BaseException) -> None:
        """Count *error*; switch its hook off when it keeps failing; report the first few."""
        self.errors += 1
        hook.failures += 1
        if hook.failures >= MAX_FAILURES:
            hook.live = False
        try:
            if self.errors <= MAX_REPORTS:
                self._report(hook, error)
            if self.on_error is not None:
                self.on_error(self.errors)
        except Exception:  # noqa: BLE001 - a report that cannot be written must not become an error of the job
            self._path = None

    def _report(self, hook: Hook, error: BaseException) -> None:
        import json
        import traceback

        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
        report = {"t": time.time_ns(), "pid": os.getpid(), **self._who, "where": hook.name}
        line = json.dumps(report | {"error": repr(error)[:500], "off": not hook.live, "trace": trace[-3000:]}) + "\n"
        if os.environ.get(DEBUG_VARIABLE) == "1":
            os.write(2, f"ddiag: {hook.name}: {trace}".encode())
        if self._path is None:
            self._waiting = [*self._waiting[-9:], line.encode()]
        else:
            self._write(line.encode())

    def _write(self, line: bytes) -> None:
        if self._path is not None:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, line)
            finally:
                os.close(file)


DOOR = Door()
"""The process's own."""


def _never() -> bool:
    return False


compiling: Callable[[], bool] = _never
"""``torch.compiler.is_compiling`` once there is one. TorchDynamo takes it for a constant while it traces, so that our
wrappers vanish from compiled code instead of breaking its graph."""


def around(
    original: Callable[..., Any],
    name: str,
    before: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    after: Callable[[Any, Any, bool], None],
) -> Callable[..., Any]:
    """A stand-in for *original*: ``token = before(args, kwargs)``, the original, ``after(token, result, failed)``.

    A token of None means "not interested", and *after* is left out. What the original raises passes on untouched.
    """
    hook = DOOR.hook(name)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if compiling() or not hook.live:
            return original(*args, **kwargs)
        try:
            token = before(args, kwargs)
        except Exception as error:  # noqa: BLE001 - this is the door
            DOOR.failed(hook, error)
            token = None
        if token is None:
            return original(*args, **kwargs)
        failed, result = True, None
        try:
            result = original(*args, **kwargs)
            failed = False
        finally:
            try:
                after(token, result, failed)
            except Exception as error:  # noqa: BLE001 - this is the door
                DOOR.failed(hook, error)
        return result

    return observed


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """*function* as a callback that returns None instead of raising."""
    hook = DOOR.hook(name)

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> Any:
        if compiling() or not hook.live:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - this is the door
            DOOR.failed(hook, error)
            return None

    return safe


def callback(name: str, function: Callable[[Any], object]) -> Callable[[Any], None]:
    """:func:`guarded` for what is called as often as there are collectives, and never while code is compiled.

    *function* takes one argument: passing on any number costs more than the rest of this.
    """
    hook = DOOR.hook(name)

    def safe(argument: Any) -> None:
        if hook.live:
            try:
                function(argument)
            except Exception as error:  # noqa: BLE001 - this is the door
                DOOR.failed(hook, error)

    return safe


@contextmanager
def quietly(name: str) -> Iterator[None]:
    """A block whose failure is only reported."""
    hook = DOOR.hook(name)
    try:
        yield
    except Exception as error:  # noqa: BLE001 - this is the door
        DOOR.failed(hook, error)
