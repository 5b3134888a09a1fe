"""Ends of processes that are somebody else's children."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ddiag.supervise.exits import Exits

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def root() -> Iterator[subprocess.Popen[bytes]]:
    """The job's first process; it does not wait for its children."""
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


def told(exits: Exits) -> list[dict[str, Any]]:
    until = time.monotonic() + 20
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < until:
        found = exits.wait(0.2)
    return found


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", {"code": 3}),
        ("pass", {"code": 0}),
        ("import os; os.kill(os.getpid(), 9)", {"signal": 9}),
        ("import os; os.abort()", {"signal": 6}),
    ],
)
def test_an_end_is_told_once_with_its_status(root: subprocess.Popen[bytes], code: str, status: dict[str, int]) -> None:
    exits = Exits(root.pid)
    child = subprocess.Popen([sys.executable, "-c", f"import sys; sys.stdin.read(); {code}"], stdin=subprocess.PIPE)
    exits.watch(child.pid, 1)
    exits.watch(child.pid, 1)
    assert exits.wait(0.0) == []
    before = time.time_ns()
    assert child.stdin is not None
    child.stdin.close()
    (found,) = told(exits)
    assert {name: value for name, value in found.items() if name in ("code", "signal")} == status
    assert (found["pid"], found["rank"]) == (child.pid, 1)
    assert before <= found["at"] <= time.time_ns()
    child.wait()
    assert exits.wait(0.0) == []


def test_a_process_whose_parent_was_quicker_has_a_time_and_no_status(root: subprocess.Popen[bytes]) -> None:
    exits = Exits(root.pid)
    child = subprocess.Popen(SLEEPER)
    exits.watch(child.pid, 0)
    child.kill()
    child.wait()
    (found,) = told(exits)
    assert sorted(found) == ["at", "pid", "rank"]


def test_the_end_of_the_root_wakes_but_is_not_told(root: subprocess.Popen[bytes]) -> None:
    exits = Exits(root.pid)
    began = time.monotonic()
    os.kill(root.pid, 9)
    assert exits.wait(30.0) == []
    assert time.monotonic() - began < 20


def test_a_process_that_is_gone_already_is_not_told_of(root: subprocess.Popen[bytes]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    exits = Exits(root.pid)
    exits.watch(child.pid, 0)
    assert exits.wait(0.1) == []
