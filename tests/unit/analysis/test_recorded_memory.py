"""Memory of devices: how full, how fragmented, and whether the allocator runs out, from a recording and its samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddiag.api import load
from ddiag.rulekit import Severity
from tests.recordings import MONO_NS
from tests.unit.analysis.sampling import GIB, H100, Node, found, recorded

FULL = {"device_bytes": 74 * GIB, "reserved_bytes": 76 * GIB}
FITS = {"device_bytes": 48 * GIB, "reserved_bytes": 52 * GIB}


def test_a_device_that_its_allocator_fills(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Node(), **FULL)
    assert run.table("ranks")["device_memory_bytes"].to_list() == [80 * GIB] * 2
    full = found(run)["DD601"]
    assert "74 GiB of 80 GiB in use at the peak (92%)" in full.title
    assert full.culprits.ranks == ()


def test_a_device_with_room_is_left_in_peace(tmp_path: Path) -> None:
    assert not set(found(recorded(tmp_path / "run", Node(), **FITS))) & {"DD601", "DD602", "DD603"}


def test_in_a_container_devices_that_are_alike_tell_as_much(tmp_path: Path) -> None:
    assert "DD601" in found(recorded(tmp_path / "run", Node(users=()), **FULL))


def test_in_a_container_devices_that_differ_tell_nothing(tmp_path: Path) -> None:
    other = {**H100, "name": "NVIDIA A40", "memory_bytes": 45 * GIB}
    run = recorded(tmp_path / "run", Node(users=(), devices=(H100, other)), **FULL)
    assert run.table("ranks")["device_memory_bytes"].to_list() == [None, None]
    assert "DD601" not in found(run)


def test_each_rank_is_measured_by_its_own_device(tmp_path: Path) -> None:
    small = {**H100, "name": "NVIDIA A40", "memory_bytes": 45 * GIB}
    node = Node(devices=(H100, small))
    run = recorded(tmp_path / "run", node, device_bytes=41 * GIB, reserved_bytes=43 * GIB)
    assert run.table("ranks").sort("rank")["device_name"].to_list() == [H100["name"], "NVIDIA A40"]
    assert found(run)["DD601"].culprits.ranks == (1,)


@pytest.mark.parametrize(("every", "severity"), [(2, Severity.WARNING), (1, Severity.WARNING)])
def test_an_allocator_that_runs_out_again_and_again(tmp_path: Path, every: int, severity: Severity) -> None:
    churn = found(recorded(tmp_path / "run", Node(), **FITS, retry_every=every))["DD602"]
    assert "runs out in " in churn.title
    assert churn.severity is severity
    if every == 2:
        assert churn.cost.ms_per_step == pytest.approx(10.0, rel=0.15)
    else:
        assert churn.cost.ms_per_step is None


def test_retries_while_the_cache_fills_up_are_normal(tmp_path: Path) -> None:
    assert "DD602" not in found(recorded(tmp_path / "run", Node(), **FITS, retry_every=100))


def test_one_long_batch_among_many_is_no_churn(tmp_path: Path) -> None:
    assert "DD602" not in found(recorded(tmp_path / "run", Node(), **FITS, retry_every=14))


def test_what_the_allocator_itself_counts_stands_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recorded(folder, Node(), **FITS, retry_every=2)
    look = {"kind": "device_memory", "mono_ns": MONO_NS + 10**9, "pinned_bytes": 1, "reserved_bytes": 100,
            "inactive_split_bytes": 40, "ooms": 3}  # fmt: skip
    with next((folder / "ranks" / "a0").glob("r00000-*.facts.jsonl")).open("a") as file:
        file.write(json.dumps(look) + "\n")

    rows = {row.label: row.value for row in found(load([str(folder)]))["DD602"].evidence}
    assert rows["free, in blocks partly in use"] == 0.4
    assert rows["requests that failed"] == 3
