"""Stacks of a rank's threads, taken from outside.

``py-spy`` is run as a program when it is there. Python stacks are read without stopping the process; the native ones
of a rank that hangs anyway need it stopped for about a second. Where the system refuses that, a rank that registered
faulthandler on a signal of its own (:mod:`ddiag.schema.stack_signal`) is asked to write its stacks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from ddiag.schema.stack_signal import MEMORY_NAME
from ddiag.supervise.environment import PACKAGE
from ddiag.supervise.proc import read_text

PROGRAM = "py-spy"
MAIN = "MainThread"
_LIMIT_S, _NATIVE_LIMIT_S = 10.0, 20.0
_MOST_THREADS, _MOST_FRAMES = 24, 60
_OURS = f"{PACKAGE}{os.sep}capture{os.sep}"
_ANSWER_S = 1.5
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[(?P<name>.*)\] )?\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


@dataclass(frozen=True)
class Taken:
    """What one attempt gave."""

    stacks: tuple[dict[str, Any], ...] = ()
    """As in :mod:`ddiag.schema.hang`."""
    by: str = ""
    why_not: str = ""


def program() -> str | None:
    """py-spy beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(PROGRAM)
    return str(beside) if os.access(beside, os.X_OK) else which(PROGRAM)


def python_stacks(pid: int) -> Taken:
    """Of all Python threads of *pid*, which is not stopped for it."""
    taken = _dump(pid, "--nonblocking", limit_s=_LIMIT_S)
    # It was moving just then: what was read of it made no sense.
    return taken if taken.stacks or not taken.by else _dump(pid, "--nonblocking", limit_s=_LIMIT_S)


def native_stacks(pid: int) -> Taken:
    """The same with the frames of C and C++; stops the process for about a second."""
    return _dump(pid, "--native", limit_s=_NATIVE_LIMIT_S)


def _dump(pid: int, option: str, *, limit_s: float) -> Taken:
    spy = program()
    if spy is None:
        return Taken(why_not="py-spy is not installed (pip install py-spy)")
    command = [spy, "dump", "--json", option, "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return Taken(by=PROGRAM, why_not=f"py-spy took longer than {limit_s:g} s")
    except OSError as error:
        return Taken(why_not=f"py-spy cannot be run: {error.strerror}")
    try:
        threads = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Taken(by=PROGRAM, why_not=f"py-spy: {said[-1].strip() if said else f'exit code {done.returncode}'}")
    return Taken(tuple(_spied(thread, pid) for thread in threads[:_MOST_THREADS]), PROGRAM)


def _spied(thread: dict[str, Any], pid: int) -> dict[str, Any]:
    frames = [one for one in thread["frames"] if not one["filename"].startswith(_OURS)]
    native = any(_is_native(one) for one in frames)
    return {
        "thread": MAIN if thread.get("os_thread_id") == pid else thread.get("thread_name") or "",
        "tid": thread.get("os_thread_id"),
        "state": _thread_state(thread),
        "kind": "native" if native else "python",
        "frames": [_frame(one) for one in frames[:_MOST_FRAMES]],
    }


def _thread_state(thread: dict[str, Any]) -> str:
    """A thread that sleeps and yet has the GIL keeps all others out; one that runs may give it up any moment."""
    if thread.get("active"):
        return "active"
    return "gil" if thread.get("owns_gil") else "idle"


def _is_native(frame: dict[str, Any]) -> bool:
    return not frame["line"] and not frame["filename"].endswith(".py")


def _frame(frame: dict[str, Any]) -> str:
    at = frame["filename"] if _is_native(frame) else f"{frame['filename']}:{frame['line']}"
    return f"{frame['name']} ({at})"


def asked_stacks(pid: int, number: int, file: str) -> Taken:
    """Let *pid* write its stacks into *file*: faulthandler, on signal *number*.

    Nothing is sent to a process that does not catch that signal (it would die of it), or whose file has become
    another.
    """
    if not number or not _catches(pid, number) or not _is_ours(file):
        return Taken(why_not="the process offers no signal for its stacks")
    try:
        text = _answer(pid, number, Path(file))
    except OSError as error:
        return Taken(why_not=f"its stacks cannot be read: {error.strerror}")
    stacks = tuple(parse_faulthandler(text))
    return Taken(stacks, "faulthandler") if stacks else Taken(why_not="the process did not answer the signal")


def _answer(pid: int, number: int, path: Path) -> str:
    before = size = path.stat().st_size
    os.kill(pid, number)
    until = time.monotonic() + _ANSWER_S
    while time.monotonic() < until:
        time.sleep(0.1)
        now = path.stat().st_size
        if now == size > before:
            break
        size = now
    with path.open("rb") as stream:
        stream.seek(before)
        return stream.read(1 << 20).decode("utf-8", "replace")


def _is_ours(file: str) -> bool:
    try:
        return str(Path(file).readlink()).startswith(f"/memfd:{MEMORY_NAME}")
    except OSError:
        return False


def _catches(pid: int, number: int) -> bool:
    for line in read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def parse_faulthandler(text: str) -> list[dict[str, Any]]:
    """``faulthandler.dump_traceback`` of all threads; the main thread comes last."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread is not None:
            found.append({"thread": thread["name"] or "", "tid": None, "state": "", "kind": "python", "frames": []})
        elif frame is not None and found and not frame["file"].startswith(_OURS):
            found[-1]["frames"].append(f"{frame['name']} ({frame['file']}:{frame['line']})")
    if found:
        found[-1]["thread"] = MAIN
    return found[-_MOST_THREADS:]


def main_stack(stacks: tuple[dict[str, Any], ...]) -> tuple[str, ...]:
    """Frames of the main thread; empty when it is not among *stacks*."""
    return next((tuple(one["frames"]) for one in stacks if one["thread"] == MAIN), ())
