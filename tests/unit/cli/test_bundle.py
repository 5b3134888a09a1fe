"""``ddiag bundle``: what goes in, what does not, and that it reads back the same."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Run

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"


def _diagnosis(run: Run, *paths: object) -> list[tuple[Any, ...]]:
    found = json.loads(run("analyze", *paths, "--no-html", "--json", "-").out)
    return [(one["rule"], one["severity"], one["culprits"]["ranks"], one["cost"]) for one in found["findings"]]


@pytest.mark.parametrize("name", ["slow_input", "tiny_buckets"])
def test_a_recorded_run_reads_back_with_the_same_diagnosis(run: Run, name: str) -> None:
    folder = Path("runs")
    shutil.unpack_archive(FIXTURES / "runs" / f"{name}.zip", folder)
    result = run("bundle", folder, "-o", "b.zip")
    assert result.code == 0, result.err
    assert _diagnosis(run, "b.zip") == _diagnosis(run, folder) != []


def test_traces_read_back_with_the_same_diagnosis(run: Run, slow_input: Path) -> None:
    assert run("bundle", slow_input, "-o", "b.zip").code == 0
    assert _diagnosis(run, "b.zip") == _diagnosis(run, slow_input) != []


@pytest.mark.parametrize("case", sorted((FIXTURES / "cases").glob("rc-*")), ids=lambda path: path.name)
def test_a_case_of_logs_reads_back_with_the_same_diagnosis(run: Run, case: Path) -> None:
    inputs = sorted(case.glob("input*"))
    assert run("bundle", *inputs, "-o", "b.zip", "--no-node").code == 0
    assert _diagnosis(run, "b.zip") == _diagnosis(run, *inputs)


def _evidence() -> Path:
    folder = Path("job")
    folder.mkdir()
    log = "[rank3]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation "
    log += "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 "
    log += "milliseconds before timing out.\nWANDB_API_KEY=aaaabbbbccccddddeeeeffff\npeer 10.9.8.7 /home/dave/x.py\n"
    (folder / "train.log").write_text(log)
    dump = {
        "version": "2.9",
        "rank": 3,
        "entries": [{"frames": [{"name": "f", "filename": "/home/dave/x.py", "line": 1}]}],
    }
    (folder / "nccl_trace_rank_3").write_bytes(pickle.dumps(dump))
    (folder / "core.4711").write_bytes(b"\x7fELF" + bytes(5000))
    return folder


def test_nothing_personal_is_in_the_archive(run: Run) -> None:
    assert run("bundle", _evidence(), "-o", "b.zip").code == 0
    with zipfile.ZipFile("b.zip") as archive:
        everything = b"".join(archive.read(name) for name in archive.namelist())
        names = archive.namelist()
        dump = pickle.loads(archive.read(next(name for name in names if "nccl_trace" in name)))  # noqa: S301 - ours
    for secret in (b"aaaabbbb", b"10.9.8.7", b"dave"):
        assert secret not in everything
    assert dump["entries"][0]["frames"][0]["filename"] == "/home/user1/x.py"
    assert not any("core.4711" in name for name in names)


def test_a_dry_run_writes_nothing_and_lists_everything(run: Run) -> None:
    result = run("bundle", _evidence(), "--dry-run")
    assert result.code == 0
    assert "train.log" in result.out
    assert any("left out" in line and "core.4711" in line for line in result.out.splitlines())
    assert list(Path().glob("*.zip")) == []


def test_the_archive_says_what_it_lacks_and_what_was_replaced(run: Run) -> None:
    result = run("bundle", _evidence(), "-o", "b.zip")
    assert "core.4711" in result.err
    assert "secrets" in result.err
    with zipfile.ZipFile("b.zip") as archive:
        manifest = json.loads(archive.read("bundle.json"))
    assert manifest["left_out"][0]["name"].endswith("core.4711")
    assert manifest["node"]["ddiag_node"] == 1
    assert "findings" in manifest["diagnosis"]


def test_without_evidence_or_target_it_says_so_in_one_line(run: Run) -> None:
    assert run("bundle", "nowhere").code == 2
    missing = run("bundle", "nowhere", "-o", "b.zip")
    assert (missing.code, Path("b.zip").exists()) == (2, False)
    assert "Traceback" not in missing.err
