"""What only a recording knows leads to the right finding, and its healthy twin to none."""

from __future__ import annotations

from pathlib import Path

from ddiag.api import diagnose, load
from tests.recordings import Plan, healthy, write_run


def _found(folder: Path, *plans: Plan) -> dict[str, str]:
    diagnosis = diagnose(load([str(write_run(folder, *plans))]))
    return {finding.rule: finding.title for finding in diagnosis.findings}


def test_nothing_is_wrong_with_a_healthy_run(tmp_path: Path) -> None:
    assert set(_found(tmp_path, *healthy(steps=60))) <= {"DD206"}


def test_a_process_that_grows_by_a_quarter_mebibyte_per_step(tmp_path: Path) -> None:
    titles = _found(tmp_path / "a", *healthy(steps=400, capacity=400, rss_growth_bytes=256 << 10))
    assert titles["DD603"].startswith("memory of the training process grows by 256 KiB per step")
    level = _found(tmp_path / "b", *healthy(steps=400, capacity=400))
    assert "DD603" not in level


def test_a_checkpoint_in_every_step(tmp_path: Path) -> None:
    titles = _found(tmp_path, *healthy(save_every=1, save_ms=50.0))
    assert "of the run: 12 saves" in titles["DD207"]


def test_one_rank_that_waits_for_its_input(tmp_path: Path) -> None:
    titles = _found(tmp_path, Plan(rank=0, peer_late_ms=30.0, steps=20), Plan(rank=1, late_ms=30.0, steps=20))
    assert next(iter(titles)) == "DD502"
    assert titles["DD502"].startswith("rank 1")


def test_input_that_holds_up_everybody(tmp_path: Path) -> None:
    titles = _found(tmp_path, *healthy(input_ms=40.0))
    assert "DD101" in titles
    assert "DD502" not in titles


def test_what_the_script_does_of_its_own_after_every_update(tmp_path: Path) -> None:
    titles = _found(tmp_path / "a", *healthy(pause_ms=30.0))
    assert titles["DD210"].startswith("the script takes 30.0 ms per step (25%) of its own after optimizer")
    assert "DD210" not in _found(tmp_path / "b", *healthy(pause_ms=3.0))
