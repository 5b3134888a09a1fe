"""Exports of Nsight Systems become traces like any other."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
import pytest

from ddiag.api import diagnose, load
from ddiag.errors import InputError
from ddiag.model.run import Run
from tests.unit.ingest.nsys_file import EPOCH_NS, MS, write


def _loaded(path: Path) -> Run:
    return load([str(path)], jobs=1)


def test_kernels_copies_launches_and_ranges_become_tables(tmp_path: Path) -> None:
    run = _loaded(write(tmp_path / "report.sqlite"))
    kernels = run.table("kernels").sort("start_ns")
    assert kernels.height == 18
    assert kernels["start_ns"][0] == EPOCH_NS + 3 * MS
    assert kernels["end_ns"][0] == EPOCH_NS + 40 * MS
    assert set(kernels["kind"].cast(pl.String)) == {"compute", "communication"}
    copies = run.table("copies")
    assert copies["direction"].cast(pl.String).unique().to_list() == ["h2d"]
    assert copies["pinned"].to_list() == [False] * 6
    assert copies["bytes"].sum() == 6 << 20
    assert run.table("launches")["name"].cast(pl.String).unique().sort().to_list() == [
        "cuLaunchKernelEx",
        "cudaLaunchKernel",
    ]
    assert "aten::mm" in run.table("ops")["name"].cast(pl.String).to_list()
    assert run.table("steps")["step"].to_list() == [0, 1, 2, 3, 4, 5]


def test_host_and_device_are_known(tmp_path: Path) -> None:
    ranks = _loaded(write(tmp_path / "report.sqlite")).table("ranks")
    assert ranks["host"].to_list() == ["node-k"]
    assert ranks["device_name"].to_list() == ["NVIDIA H100"]
    assert ranks["device_memory_bytes"].to_list() == [85520809984]


def test_collectives_are_told_by_their_kernels(tmp_path: Path) -> None:
    calls = _loaded(write(tmp_path / "report.sqlite")).table("collectives")
    assert calls.height == 6
    assert set(calls["op"].cast(pl.String)) == {"all_reduce"}


def test_every_process_of_a_report_is_a_rank_of_its_own(tmp_path: Path) -> None:
    run = _loaded(write(tmp_path / "report.sqlite", pids=(4100, 4101, 4102)))
    assert run.table("ranks").height == 3
    assert run.table("kernels").group_by("rank").len()["len"].to_list() == [18, 18, 18]
    assert len(run.coverage.inputs) == 3


def test_the_rank_is_taken_from_the_file_name_of_one_process(tmp_path: Path) -> None:
    write(tmp_path / "rank0.sqlite")
    write(tmp_path / "rank1.sqlite", pids=(5200,))
    assert load([str(tmp_path)], jobs=1).coverage.ranks_seen == (0, 1)


def test_without_a_session_start_times_are_of_the_session(tmp_path: Path) -> None:
    kernels = _loaded(write(tmp_path / "old.sqlite", dated=False)).table("kernels").sort("start_ns")
    assert kernels["start_ns"][0] == 3 * MS
    assert kernels["end_ns"][0] == 40 * MS


def test_a_call_that_waits_in_every_step_is_found(tmp_path: Path) -> None:
    found = diagnose(_loaded(write(tmp_path / "report.sqlite", steps=12, synced=True)))
    assert "RC-55" in {finding.root_cause for finding in found.findings}


def test_a_database_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE runs (id INTEGER)")
    base.close()
    with pytest.raises(InputError, match="not an export of Nsight Systems"):
        _loaded(path)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_damaged_export_gives_what_is_left_or_one_line(tmp_path: Path, share: float) -> None:
    whole = write(tmp_path / "whole.sqlite", steps=200).read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(share * len(whole))])
    try:
        assert _loaded(path).coverage.inputs
    except InputError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
