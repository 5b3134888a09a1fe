"""Snapshots of the caching allocator: fragmentation, what is live, and nothing is run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ddiag.analysis.incident.records import events
from ddiag.api import diagnose, load
from ddiag.errors import InputError
from ddiag.model.incident import Event

GIB = 1 << 30
FORWARD = [
    {"filename": "??", "line": 0, "name": "at::empty"},
    {"filename": "/usr/lib/python3/dist-packages/torch/nn/functional.py", "line": 2500, "name": "linear"},
    {"filename": "/srv/exp/model.py", "line": 88, "name": "forward"},
    {"filename": "/srv/exp/train.py", "line": 20, "name": "main"},
]
OPTIMIZER = [
    {"filename": "/opt/venv/lib/python3.11/site-packages/torch/optim/adamw.py", "line": 150, "name": "_init_group"},
    {"filename": "/srv/exp/train.py", "line": 31, "name": "main"},
]


def _block(size: int, frames: list[dict[str, Any]] | None = None, state: str = "active_allocated") -> dict[str, Any]:
    return {"size": size, "requested_size": size, "address": 1, "state": state, "frames": frames or []}


def _snapshot(blocks: list[dict[str, Any]], oom: int = 0, device: int = 0) -> dict[str, Any]:
    total = sum(block["size"] for block in blocks)
    segment = {
        "device": device, "address": 1, "total_size": total, "stream": 0, "segment_type": "large", "blocks": blocks,
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
    }  # fmt: skip
    failed = [{"action": "oom", "size": oom, "device_free": GIB, "frames": [], "stream": 0}] if oom else []
    traces = [[] for _ in range(device)] + [failed]
    return {"segments": [segment], "device_traces": traces, "allocator_settings": {"expandable_segments": False}}


def _write(path: Path, value: Any) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


def _seen(path: Path, kind: str) -> tuple[Event, ...]:
    found = events(load([str(path)], jobs=1))
    assert found is not None
    return found.of(kind)


def test_live_memory_is_told_by_the_lines_that_allocated_it(tmp_path: Path) -> None:
    blocks = [_block(6 * GIB, FORWARD), _block(2 * GIB, OPTIMIZER), _block(GIB, state="inactive")]
    (event,) = _seen(_write(tmp_path / "snap.pickle", _snapshot(blocks)), "cuda.snapshot")
    assert event.integer("reserved_bytes") == 9 * GIB
    assert event.integer("allocated_bytes") == 8 * GIB
    assert event.integer("activations_bytes") == 6 * GIB
    assert event.integer("states_bytes") == 2 * GIB
    assert event.get("top") == [
        {"where": "forward (model.py:88)", "bytes": 6 * GIB},
        {"where": "main (train.py:31)", "bytes": 2 * GIB},
    ]


def test_json_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "snap.json"
    path.write_text(json.dumps(_snapshot([_block(GIB, FORWARD)], device=2)))
    (event,) = _seen(path, "cuda.snapshot")
    assert event.integer("device") == 2


def test_old_snapshots_keep_their_stacks_in_a_history(tmp_path: Path) -> None:
    block = {"size": GIB, "state": "active_allocated", "history": [{"addr": 1, "real_size": GIB, "frames": FORWARD}]}
    segment = {"device": 0, "total_size": GIB, "segment_type": "large", "blocks": [block]}
    (event,) = _seen(_write(tmp_path / "snap.pickle", [segment]), "cuda.snapshot")
    assert event.integer("activations_bytes") == GIB


def test_an_oom_with_large_holes_is_fragmentation(tmp_path: Path) -> None:
    holes = [_block(GIB, OPTIMIZER), _block(GIB, state="inactive")] * 10
    found = diagnose(
        load([str(_write(tmp_path / "snap_rank3.pickle", _snapshot(holes, oom=3 * GIB)))], jobs=1)
    ).findings
    assert (found[0].root_cause, found[0].culprits.ranks) == ("RC-28", (3,))


def test_an_oom_of_activations_is_said_to_be_one(tmp_path: Path) -> None:
    full = _snapshot([_block(60 * GIB, FORWARD), _block(10 * GIB, OPTIMIZER)], oom=2 * GIB)
    found = diagnose(load([str(_write(tmp_path / "snap.pickle", full))], jobs=1)).findings
    assert {"RC-06", "RC-79"} <= {finding.root_cause for finding in found}


def test_a_snapshot_in_peace_raises_nothing(tmp_path: Path) -> None:
    calm = _snapshot([_block(10 * GIB, OPTIMIZER), _block(4 * GIB, FORWARD), _block(GIB, state="inactive")])
    found = diagnose(load([str(_write(tmp_path / "snap.pickle", calm))], jobs=1)).findings
    assert not found


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("never",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError):
        load([str(_write(tmp_path / "snap.pickle", {"segments": [_Bomb()], "device_traces": []}))], jobs=1)
    assert "never" not in capsys.readouterr().out
