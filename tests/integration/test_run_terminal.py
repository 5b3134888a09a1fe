"""On a terminal: Ctrl-C, Ctrl-Z, fg, bg, reading from the terminal in the background, a terminal that goes away."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.running import PYTHON, alive, environment, eventually, recorded, script

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")

JOB = """
import os, pathlib, signal, sys, time
pathlib.Path("pid").write_text(str(os.getpid()))
print("isatty", sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
print("foreground", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
print("read", input(), flush=True)
print("and", input(), flush=True)
sys.exit(7)
"""


class Terminal:
    """An interactive bash on a pseudo-terminal."""

    def __init__(self, folder: Path) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
            os.execvpe("bash", shell, {**environment(), "PS1": "$ ", "HISTFILE": ""})
        self.shown = ""
        self._looked = 0

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def expect(self, pattern: str, *, within_s: float = 60.0) -> re.Match[str]:
        """Wait until *pattern* comes after what was expected before."""
        until = time.monotonic() + within_s
        while True:
            match = re.compile(pattern).search(self.shown, self._looked)
            if match is not None:
                self._looked = match.end()
                return match
            if time.monotonic() > until or not self._read(until):
                raise AssertionError(f"no {pattern!r} in {self.shown[self._looked :]!r}")

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self._file], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._file, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def hang_up(self) -> None:
        os.close(self._file)
        self._file = -1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        os.waitpid(self.pid, 0)


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    opened = Terminal(folder)
    try:
        yield opened
    finally:
        opened.close()


def _command(tmp_path: Path, text: str) -> str:
    words = [*recorded(tmp_path / "runs", "--no-report", "--quiet"), PYTHON, script(tmp_path, text)]
    return shlex.join(words)


def _job(tmp_path: Path) -> int:
    return eventually(lambda: int((tmp_path / "pid").read_text() or 0) if (tmp_path / "pid").exists() else 0)


def test_the_job_has_the_terminal_and_stops_and_goes_on_like_any_job(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        shell.type(_command(tmp_path, JOB) + "\n")
        shell.expect("isatty True True True")
        shell.expect("foreground True")
        shell.type("one\n")
        shell.expect("read one")
        shell.type("\x1a")
        shell.expect(r"Stopped")
        pid = _job(tmp_path)
        assert _state(pid) == "T"
        shell.type("jobs; echo still $?\n")
        shell.expect(r"\+ +Stopped")
        shell.expect("still 0")
        shell.type("fg\n")
        shell.type("two\n")
        shell.expect("and two")
        shell.type("echo code $?\n")
        shell.expect(r"code 7\b")


def test_in_the_background_reading_stops_it_and_fg_resumes_it(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        shell.type(_command(tmp_path, JOB) + " &\n")
        shell.expect("foreground False")
        time.sleep(0.5)
        shell.type("jobs\n")
        shell.expect(r"\+ +Stopped")
        shell.type("fg\n")
        time.sleep(0.3)
        shell.type("one\ntwo\n")
        shell.expect("read one")
        shell.expect("and two")
        shell.type("echo code $?\n")
        shell.expect(r"code 7\b")


def test_ctrl_c_ends_a_job_that_does_not_mind(tmp_path: Path) -> None:
    text = "import time, signal; signal.signal(signal.SIGINT, 0); print('ready', flush=True); time.sleep(60)"
    with terminal(tmp_path) as shell:
        shell.type(_command(tmp_path, text) + "\n")
        shell.expect("ready")
        shell.type("\x03")
        shell.type("echo code $?\n")
        shell.expect(r"code 130\b")


def test_ctrl_c_is_the_jobs_to_handle_and_comes_once(tmp_path: Path) -> None:
    text = (
        "import time\n"
        "try:\n    print('ready', flush=True); time.sleep(60)\nexcept KeyboardInterrupt:\n"
        "    time.sleep(.5); print('saved', flush=True)\n"
    )
    with terminal(tmp_path) as shell:
        shell.type(_command(tmp_path, text) + "\n")
        shell.expect("ready")
        shell.type("\x03")
        shell.expect("saved")
        shell.type("echo code $?\n")
        shell.expect(r"code 0\b")


@pytest.mark.long
def test_a_terminal_that_hangs_up_ends_the_job(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    with terminal(tmp_path) as shell:
        shell.type(_command(tmp_path, text) + "\n")
        shell.expect("ready")
        pid = _job(tmp_path)
        shell.hang_up()
        eventually(lambda: not alive(pid), within_s=20)


def test_stopping_only_the_supervisor_stops_the_job(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\n"
        "for _ in range(40): time.sleep(.1)\nprint('slept', flush=True)"
    )
    with terminal(tmp_path) as shell:
        shell.type(_command(tmp_path, text) + " & sleep .1; echo super=$!\n")
        supervisor = int(shell.expect(r"super=(\d+)")[1])
        pid = _job(tmp_path)
        os.kill(supervisor, signal.SIGTSTP)
        eventually(lambda: _state(pid) == "T", within_s=10)
        eventually(lambda: _state(supervisor) == "T", within_s=10)
        os.kill(supervisor, signal.SIGCONT)
        shell.expect("slept", within_s=30)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
