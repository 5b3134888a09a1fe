"""Paths and manifest of a run folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddiag.errors import InputError
from ddiag.schema import folder
from ddiag.schema.phases import FORMAT_VERSION

MANIFEST = folder.Manifest(
    ddiag_version="1",
    name="train",
    argv=("torchrun", "train.py"),
    launcher="torchrun",
    start_wall_ns=5,
    host="node-a",
    supervisor_pid=7,
    options={"nvtx": False},
)


def test_a_manifest_reads_back_as_written(tmp_path: Path) -> None:
    written = replace(MANIFEST, exit_code=3, attempts=(folder.Attempt(0, 5, 9, (0, 1)),), notes=("late",))
    folder.write_manifest(tmp_path, written)
    assert folder.read_manifest(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder.write_manifest(tmp_path, replace(MANIFEST, format_version=FORMAT_VERSION + 1))
    with pytest.raises(InputError, match="newer ddiag"):
        folder.read_manifest(tmp_path)


def test_a_field_of_a_newer_release_is_ignored(tmp_path: Path) -> None:
    folder.write_manifest(tmp_path, MANIFEST)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"moon_phase": 3}))
    assert folder.read_manifest(tmp_path) == MANIFEST


@pytest.mark.parametrize("text", ["", "[1]", '{"format_version": 1}', '{"format_version": "x"}', "{"])
def test_what_is_no_manifest_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json"):
        folder.read_manifest(tmp_path)


def test_a_folder_without_a_manifest_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        folder.read_manifest(tmp_path)


def test_processes_are_found_in_order_and_strangers_left_out(tmp_path: Path) -> None:
    made = [
        folder.process_files(tmp_path, attempt=a, rank=r, pid=p, turn=t)
        for a, r, p, t in ((0, 0, 11, 0), (0, 1, 9, 0), (0, 1, 9, 1), (1, 0, 20, 0))
    ]
    for files in reversed(made):
        files.folder.mkdir(parents=True, exist_ok=True)
        for path in (files.ring, files.native_ring, files.steps, files.facts):
            path.touch()
    (tmp_path / "ranks" / "a0" / "readme.ring").touch()
    assert folder.find_processes(tmp_path) == made
    assert made[0].ring.name == "r00000-11.ring"


def test_a_folder_name_has_nothing_a_file_system_minds() -> None:
    assert folder.folder_name("my run/../é", wall_ns=10**18, pid=4).startswith("my_run-2001")
    assert folder.folder_name("…", wall_ns=10**18, pid=4).startswith("run-2001")
