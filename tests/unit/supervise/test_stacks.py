"""Stacks of real processes: running, stopped, holding the GIL, and asked by signal where they may not be traced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddiag.schema.stack_signal import MEMORY_NAME, OFFSET
from ddiag.supervise.stacks import asked_stacks, main_stack, native_stacks, parse_faulthandler, python_stacks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

SLEEPER = """
import sys, time
def waits_here():
    print("ready", flush=True)
    time.sleep(600)
waits_here()
"""
GIL_HOLDER = """
import ctypes
def holds_it():
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(600)
holds_it()
"""
ANSWERING = f"""
import faulthandler, os, signal, time
memory = os.memfd_create({MEMORY_NAME!r})
faulthandler.register(signal.SIGRTMIN + {OFFSET}, file=memory, all_threads=True)
def waits_here():
    print(memory, flush=True)
    time.sleep(600)
waits_here()
"""


class Process:
    def __init__(self, folder: Path, code: str) -> None:
        self.script = folder / "job.py"
        self.script.write_text(code)
        self._running = subprocess.Popen([sys.executable, str(self.script)], stdout=subprocess.PIPE, text=True)
        assert self._running.stdout is not None
        self.said = self._running.stdout.readline().strip()
        self.pid = self._running.pid
        time.sleep(0.2)

    def end(self) -> None:
        self._running.kill()
        self._running.communicate()

    @property
    def alive(self) -> bool:
        return self._running.poll() is None


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    started = Process(tmp_path, request.param)
    yield started
    started.end()


def traced(pid: int) -> tuple[str, ...]:
    taken = python_stacks(pid)
    if not taken.stacks and "ermission" in taken.why_not:
        pytest.skip(f"this machine lets nobody trace: {taken.why_not}")
    assert taken.stacks, taken.why_not
    return main_stack(taken.stacks)


@pytest.mark.parametrize("process", [SLEEPER], indirect=True, ids=["sleeper"])
def test_the_innermost_frame_comes_first_with_its_file_and_line(process: Process) -> None:
    assert traced(process.pid)[0] == f"waits_here ({process.script}:5)"


@pytest.mark.parametrize("process", [SLEEPER], indirect=True, ids=["sleeper"])
def test_a_stopped_process_has_a_stack_too(process: Process) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    assert "waits_here" in traced(process.pid)[0]


@pytest.mark.parametrize("process", [GIL_HOLDER], indirect=True, ids=["gil_holder"])
def test_who_sleeps_with_the_gil_is_told(process: Process) -> None:
    traced(process.pid)
    (main,) = (one for one in python_stacks(process.pid).stacks if one["thread"] == "MainThread")
    assert main["state"] == "gil"
    assert "holds_it" in main["frames"][0]


@pytest.mark.parametrize("process", [SLEEPER], indirect=True, ids=["sleeper"])
def test_native_frames_lie_inside_those_of_python(process: Process) -> None:
    traced(process.pid)
    taken = native_stacks(process.pid)
    frames = main_stack(taken.stacks)
    (own,) = (place for place, frame in enumerate(frames) if "waits_here" in frame)
    assert own > 0, frames
    assert any(one["kind"] == "native" for one in taken.stacks)


@pytest.mark.parametrize("process", [ANSWERING], indirect=True, ids=["answering"])
def test_a_process_that_may_not_be_traced_answers_a_signal(process: Process) -> None:
    taken = asked_stacks(process.pid, signal.SIGRTMIN + OFFSET, f"/proc/{process.pid}/fd/{process.said}")
    assert taken.by == "faulthandler", taken.why_not
    assert main_stack(taken.stacks)[0] == f"waits_here ({process.script}:7)"
    assert process.alive


@pytest.mark.parametrize("process", [SLEEPER], indirect=True, ids=["sleeper"])
def test_a_process_that_does_not_catch_the_signal_gets_none(process: Process) -> None:
    taken = asked_stacks(process.pid, signal.SIGRTMIN + OFFSET, f"/proc/{process.pid}/fd/0")
    assert not taken.stacks
    time.sleep(0.2)
    assert process.alive


@pytest.mark.parametrize("process", [ANSWERING], indirect=True, ids=["answering"])
def test_nothing_is_sent_when_the_file_has_become_another(process: Process) -> None:
    assert not asked_stacks(process.pid, signal.SIGRTMIN + OFFSET, f"/proc/{process.pid}/fd/1").stacks


def test_a_process_that_is_gone_says_why_there_is_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    taken = python_stacks(gone.pid)
    assert not taken.stacks
    assert taken.why_not


def test_what_faulthandler_writes_of_several_threads_is_read() -> None:
    text = """Thread 0x00007f6b (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get

Current thread 0x00007f6a (most recent call first):
  File "/app/train.py", line 88 in step
  File "/app/train.py", line 120 in <module>
"""
    first, main = parse_faulthandler(text)
    assert first["frames"][0] == "wait (/usr/lib/python3.11/threading.py:331)"
    assert main["thread"] == "MainThread"
    assert main["frames"] == ["step (/app/train.py:88)", "<module> (/app/train.py:120)"]
