"""What a process does so that its stacks can be had: on a signal while it hangs, and when a fatal signal ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddiag.ingest.recorded_files import ProcessSources
from ddiag.ingest.recorded_process import read_process
from ddiag.ingest.sources import Source
from ddiag.schema.folder import ProcessFiles, find_processes
from ddiag.schema.stack_signal import MEMORY_NAME, OFFSET
from ddiag.supervise.calls import read_facts
from ddiag.supervise.stacks import asked_stacks, main_stack

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")
REPOSITORY = Path(__file__).resolve().parents[3]

JOB = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
{before}
from ddiag.capture import recorder
from ddiag.capture.hooks import stacks
from ddiag.capture.identity import Identity
from ddiag.schema.folder import process_files
active = recorder.Recorder(process_files(Path(sys.argv[1]), attempt=0, rank=0, pid=os.getpid()), Identity(0, 1, 0))
stacks.activated(active)
def stands_here():
    {what}
stands_here()
active.close()
"""


def run(folder: Path, what: str, *, before: str = "") -> tuple[ProcessFiles, int]:
    """The files of a process that did *what*, and how it ended."""
    done = start(folder, what, before=before)
    done.communicate()
    (files,) = find_processes(folder)
    return files, done.returncode


def start(folder: Path, what: str, *, before: str = "") -> subprocess.Popen[str]:
    script = folder / "job.py"
    script.write_text(JOB.format(what=what, before=before))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(script), str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def frames(files: ProcessFiles) -> tuple[str, ...]:
    sources = {path.name[path.name.index(".") :]: path for path in files.folder.iterdir()}
    found = {suffix: Source(str(path), bytes=path.stat().st_size) for suffix, path in sources.items()}
    return read_process(ProcessSources(str(files.ring), found)).fatal


@pytest.mark.parametrize(
    "what",
    [
        "os.abort()",
        "c = ctypes.CDLL(None); c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, c.abort, None); time.sleep(9)",
        "os.kill(os.getpid(), signal.SIGSEGV); time.sleep(9)",
    ],
    ids=["abort", "abort in a thread of C", "segfault"],
)
def test_a_fatal_signal_leaves_the_line_at_which_it_came(tmp_path: Path, what: str) -> None:
    files, code = run(tmp_path, what)
    assert code in (-signal.SIGABRT, -signal.SIGSEGV)
    assert any(frame.endswith("in stands_here") for frame in frames(files)), files.fatal.read_text()


def test_a_process_that_ends_well_leaves_no_file(tmp_path: Path) -> None:
    files, code = run(tmp_path, "pass")
    assert code == 0
    assert not files.fatal.exists()


def test_who_has_switched_faulthandler_on_keeps_it(tmp_path: Path) -> None:
    process = start(tmp_path, "os.abort()", before="import faulthandler; faulthandler.enable()")
    _, said = process.communicate()
    assert "Fatal Python error: Aborted" in said
    assert not list(tmp_path.glob("ranks/*/*.fatal"))


def test_the_stack_signal_is_answered_and_does_no_harm(tmp_path: Path) -> None:
    process = start(tmp_path, "print('ready', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (files,) = find_processes(tmp_path)
    facts = read_facts(files.facts)
    assert facts.stack_signal == signal.SIGRTMIN + OFFSET
    assert Path(facts.stack_file).readlink().name.startswith(f"memfd:{MEMORY_NAME}")
    taken = asked_stacks(process.pid, facts.stack_signal, facts.stack_file)
    assert any("stands_here" in frame for frame in main_stack(taken.stacks)), taken.why_not
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_a_signal_that_somebody_uses_is_left_to_him(tmp_path: Path) -> None:
    mine = f"signal.signal(signal.SIGRTMIN + {OFFSET}, lambda *_: print('mine', flush=True))"
    process = start(tmp_path, "os.kill(os.getpid(), signal.SIGRTMIN + 5)", before=mine)
    said, _ = process.communicate()
    assert "mine" in said
