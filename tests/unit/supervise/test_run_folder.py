"""Who founds a run folder and who joins it; what is written into it."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ddiag.schema.environment import allowed
from ddiag.schema.folder import Manifest, read_manifest, write_manifest
from ddiag.supervise.node_facts import write_facts
from ddiag.supervise.run_folder import JOIN_WITHIN_S, Place, open_run, read_nodes, write_node

NOW = time.time_ns()


def _manifest(host: str = "a", pid: int = 1, *, at_s: float = 0.0) -> Manifest:
    return Manifest("1", "train", ("python",), "python", NOW + int(at_s * 1e9), host, pid)


def _open(out: Path, manifest: Manifest, *, named: bool = True, **environment: str) -> Place:
    return open_run(out, manifest, named=named, environment=environment)


def test_without_a_name_every_run_has_its_own_folder(tmp_path: Path) -> None:
    first, second = (_open(tmp_path, _manifest(host), named=False) for host in "ab")
    assert first.path != second.path
    assert first.founder
    assert second.founder
    assert read_manifest(first.path) == first.manifest


def test_nodes_that_share_folder_and_name_share_the_run(tmp_path: Path) -> None:
    founder, joined = _open(tmp_path, _manifest("a")), _open(tmp_path, _manifest("b", 2, at_s=20))
    assert (founder.founder, joined.founder) == (True, False)
    assert joined.path == founder.path
    assert read_manifest(founder.path).host == "a"
    assert {node.host for node in read_nodes(founder.path)} == {"a", "b"}


@pytest.mark.parametrize("why", ["ended", "the same host", "too old"])
def test_another_run_of_the_same_name_is_not_joined(why: str, tmp_path: Path) -> None:
    founder = _open(tmp_path, _manifest("a"))
    if why == "ended":
        write_manifest(founder.path, replace(founder.manifest, end_wall_ns=NOW + 1))
    host = "a" if why == "the same host" else "b"
    later_s = JOIN_WITHIN_S + 1.0 if why == "too old" else 5.0
    other = _open(tmp_path, _manifest(host, 2, at_s=later_s))
    assert other.founder
    assert other.path != founder.path
    third = _open(tmp_path, _manifest("c", 3, at_s=later_s + 1))
    assert third.path == other.path


def test_tasks_of_one_slurm_step_share_a_run_and_the_next_step_does_not(tmp_path: Path) -> None:
    def task(number: int, step: str, pid: int) -> Place:
        given = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": step, "SLURM_PROCID": str(number)}
        return _open(tmp_path, _manifest("a", pid, at_s=pid * 1000.0), named=False, **given)

    first, second = task(0, "0", 1), task(1, "0", 2)
    assert first.path == second.path
    assert task(0, "1", 3).path != first.path
    again = task(0, "0", 4)  # the same task again: another command in the same step
    assert again.path != first.path


def test_many_at_once_found_exactly_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        places = list(pool.map(lambda k: _open(tmp_path, _manifest(f"n{k}", k)), range(32)))
    assert len({place.path for place in places}) == 1
    assert sum(place.founder for place in places) == 1
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == [places[0].path]


def test_how_each_node_ended_is_written_down(tmp_path: Path) -> None:
    place = _open(tmp_path, _manifest("a"))
    assert read_nodes(place.path)[0].end_wall_ns is None
    write_node(place, 137)
    assert read_nodes(place.path)[0].exit_code == 137


def test_facts_of_the_node_hold_no_secret(tmp_path: Path) -> None:
    place = _open(tmp_path, _manifest("a"))
    environment = {"HF_TOKEN": "hush", "NCCL_DEBUG": "INFO", "NCCL_API_KEY": "hush", "HOME": "/home/me", "RANK": "3"}
    write_facts(place, environment)
    text = (place.path / "env.json").read_text()
    assert "hush" not in text
    facts = json.loads(text)
    assert facts["environment"] == {"NCCL_DEBUG": "INFO", "RANK": "3"}
    assert facts["machine"]["cpus"] == os.cpu_count()
    assert facts["machine"]["memory_bytes"] > 1 << 20


def test_a_joined_node_writes_its_own_facts(tmp_path: Path) -> None:
    _open(tmp_path, _manifest("a"))
    joined = _open(tmp_path, _manifest("b", 2))
    write_facts(joined, {})
    assert not (joined.path / "env.json").exists()
    assert json.loads((joined.path / "nodes" / "b-2.env.json").read_text())["host"] == "b"


def test_only_known_variables_are_kept() -> None:
    given = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "TORCH_NCCL_TRACE", "MASTER_ADDR", "PATH", "USER", "RANKED"), "x")
    assert set(allowed(given)) == {"CUDA_VISIBLE_DEVICES", "TORCH_NCCL_TRACE", "MASTER_ADDR"}
