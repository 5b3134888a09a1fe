"""torchelastic's error files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddiag.analysis.incident.records import events
from ddiag.api import load
from ddiag.model.incident import Event

CALLSTACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper\n'
    "    return f(*args, **kwargs)\n"
    '  File "/w/train.py", line 9, in main\n'
    "    go()\n"
    "RuntimeError: shape mismatch\n"
)


def _read(folder: Path, content: object) -> Event:
    path = folder / "none_x" / "attempt_0" / "3" / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    found = events(load([str(path)]))
    assert found is not None
    (event,) = found.all
    return event


@pytest.mark.parametrize("code", [{}, {"errorCode": 1}])
def test_an_exception_with_its_stack_time_and_local_rank(tmp_path: Path, code: dict[str, int]) -> None:
    inner = {"message": "RuntimeError: shape mismatch", **code}
    inner["extraInfo"] = {"py_callstack": CALLSTACK, "timestamp": "1724153856"}
    event = _read(tmp_path, {"message": inner})
    assert (event.get("type"), event.get("message"), event.get("local_rank")) == ("RuntimeError", "shape mismatch", 3)
    frames = event.get("frames")
    assert isinstance(frames, list)
    assert frames[0] == "main (/w/train.py:9)"
    assert (event.ts_ns, event.clock) == (1724153856 * 10**9, "epoch")


def test_a_bare_message_of_a_signal(tmp_path: Path) -> None:
    event = _read(tmp_path, {"message": "Signal 9 (SIGKILL) received by PID 7", "timestamp": "1724153856"})
    assert "SIGKILL" in event.text
