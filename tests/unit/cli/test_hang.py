"""``ddiag hang`` on a captured hang, and the options of ``ddiag run`` about hangs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
import pytest

from ddiag.cli.options import hang_after
from ddiag.schema.folder import Manifest, write_manifest
from tests.captures import T_NS, late, rank, write
from tests.unit.cli.conftest import Run


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    """A run folder of four ranks, of which rank 1 did not come."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_manifest(folder, Manifest("1", "train", ("train.py",), "torchrun", T_NS, "node-a", 1))
    write(folder, rank(0), late(1), rank(2), rank(3))
    return folder


def test_the_first_line_names_the_culprit_its_place_and_who_waits(run: Run, hung: Path) -> None:
    result = run("hang", hung)
    assert result.code == 0
    first = " ".join(result.out.split("4 ranks on node-a")[0].split())
    assert first == (
        "■ STALLED Rank 1 (node-a, local 1) waits for its data, at data.py:7 in load; 3 ranks wait for it in "
        "all_reduce #21 of the default group"
    )


def test_the_json_is_the_same_diagnosis(run: Run, hung: Path) -> None:
    result = run("hang", hung, "--json", "-")
    found = json.loads(result.out)
    assert found["verdict"]["status"] == "stalled"
    assert found["findings"][0]["culprits"]["ranks"] == [1]
    assert "data.py:7" in found["findings"][0]["culprits"]["where"]


def test_a_report_is_written_when_it_is_asked_for(run: Run, hung: Path) -> None:
    assert not list(Path().iterdir())
    assert run("hang", hung, "--html", "report.html").code == 0
    assert "Who waits for whom" in Path("report.html").read_text()


def test_analyze_says_the_same_of_the_capture(run: Run, hung: Path) -> None:
    found = json.loads(run("analyze", hung / "hang", "--no-html", "--json", "-").out)
    assert found["findings"][0]["culprits"]["ranks"] == [1]


def test_live_wants_one_run_folder_of_a_running_job(run: Run, hung: Path, tmp_path: Path) -> None:
    assert run("hang", "--live", hung, hung).code == 2
    assert run("hang", "--live", tmp_path / "nothing").code == 2
    ended = Manifest("1", "train", ("train.py",), "torchrun", T_NS, "node-a", 1, end_wall_ns=time.time_ns())
    write_manifest(hung, ended)
    result = run("hang", "--live", hung)
    assert result.code == 2
    assert "has ended" in result.err


def test_evidence_that_is_not_there_is_told_in_a_line(run: Run, tmp_path: Path) -> None:
    result = run("hang", tmp_path / "nothing")
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(("text", "seconds"), [("auto", None), ("0", 0.0), ("12.5", 12.5)])
def test_how_long_a_job_may_be_quiet_is_auto_or_seconds(text: str, seconds: float | None) -> None:
    context = click.Context(click.Command("run"))
    assert hang_after(context, click.Option(["--hang-after"]), text) == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_anything_else_is_refused(text: str) -> None:
    context = click.Context(click.Command("run"))
    with pytest.raises(click.BadParameter, match="neither auto nor a number"):
        hang_after(context, click.Option(["--hang-after"]), text)
