"""Real TensorFlow trainings of two workers, profiled by TensorFlow, diagnosed by ddiag.

Needs TensorFlow, which the tests do not install: DDIAG_TENSORFLOW_PYTHON names a Python that has it
(``python -m venv tf && tf/bin/pip install tensorflow-cpu``); else this Python's own, else they are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddiag.analysis import derive
from ddiag.api import diagnose, load
from ddiag.model.run import Run
from ddiag.model.signals import InputWait

JOB = Path(__file__).parent / "jobs" / "tensorflow_worker.py"
SECONDS = 180
WORKERS = 2
DELAY_MS = 60


def tensorflow_python() -> str:
    named = os.environ.get("DDIAG_TENSORFLOW_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("no TensorFlow here: set DDIAG_TENSORFLOW_PYTHON to a Python that has it")
    return sys.executable


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def record(folder: Path, *, delay_ms: int, mode: str) -> Run:
    """Train and read the folder that all workers logged to."""
    python, ports = tensorflow_python(), ",".join(free_ports(WORKERS))
    workers = [
        subprocess.Popen(
            [python, str(JOB), str(folder / f"worker-{index}"), str(index), ports, str(delay_ms), mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(WORKERS)
    ]
    try:
        for worker in workers:
            output, _ = worker.communicate(timeout=SECONDS)
            assert worker.returncode == 0, output
    finally:
        for worker in workers:
            worker.kill()
    return load([str(folder)])


def input_wait_ms(run: Run) -> float:
    wait = derive(run).get(InputWait)
    assert wait is not None
    return wait.wait_ms


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("mode", ["loop", "unmarked"])
def test_a_slow_map_function_is_the_first_finding(tmp_path: Path, mode: str) -> None:
    run = record(tmp_path, delay_ms=DELAY_MS, mode=mode)
    assert run.coverage.ranks_seen == tuple(range(WORKERS)) == run.coverage.ranks_expected
    assert run.table("steps").height >= WORKERS * 7
    assert 0.5 * DELAY_MS < input_wait_ms(run) < 1.5 * DELAY_MS
    found = diagnose(run)
    assert found.findings[0].rule == "DD101"
    assert "tf.data" in found.findings[0].fix[0]


@pytest.mark.timeout(SECONDS + 60)
def test_without_the_delay_there_is_hardly_a_wait(tmp_path: Path) -> None:
    assert input_wait_ms(record(tmp_path, delay_ms=0, mode="loop")) < 0.25 * DELAY_MS
