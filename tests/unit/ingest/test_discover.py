"""What the user types becomes a list of files."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import fsspec
import pytest

from ddiag.ingest.discover import discover, natural
from tests.unit.ingest.kineto_text import healthy, write


def names(*paths: str) -> list[str]:
    return [source.name for source in discover(paths).sources]


def test_a_folder_is_searched_deeply_in_natural_order_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "node2" / ".cache").mkdir(parents=True)
    for name in ("rank10.json", "rank9.json", "node2/rank11.json", "node2/.cache/x.json", ".hidden"):
        (tmp_path / name).write_text("{}")
    assert names(str(tmp_path)) == ["rank9.json", "rank10.json", "rank11.json"]


def test_a_pattern_may_cross_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.json").write_text("{}")
    (tmp_path / "a" / "notes.txt").write_text("")
    assert names(str(tmp_path / "*" / "*.json")) == ["a.json", "b.json"]
    assert names(str(tmp_path / "**" / "b.json")) == ["b.json"]


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", healthy())
    assert names(path, str(tmp_path), f"{tmp_path}/../{tmp_path.name}/rank0.json") == ["rank0.json"]


def test_an_archive_stands_for_its_members(tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member in ("traces/rank1.json", "traces/rank0.json", "__MACOSX/traces/rank0.json", "traces/.DS_Store"):
            archive.writestr(member, "{}")
    found = discover([str(path)])
    assert [source.member for source in found.sources] == ["traces/rank0.json", "traces/rank1.json"]
    assert not any(source.explicit for source in found.sources)


@pytest.mark.parametrize(("path", "why"), [("missing.json", "no such file"), ("no/such/*.json", "no such file")])
def test_what_is_not_there_is_named(tmp_path: Path, path: str, why: str) -> None:
    found = discover([str(tmp_path / path)])
    assert found.sources == []
    assert why in found.unreadable[0][1]


def test_one_path_needs_no_list(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", healthy())
    assert [source.path for source in discover(path).sources] == [path]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert discover([str(tmp_path / "pipe")]).unreadable[0][1] == "cannot be read: not a regular file"


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    assert discover([str(tmp_path)]).unreadable == [(str(tmp_path), "contains no files")]


def test_urls_are_listed_through_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/job/rank0.json": b"{}", "/job/deep/rank1.json": b"{}"})
    assert names("memory://job") == ["rank1.json", "rank0.json"]
    assert names("memory://job/*.json") == ["rank0.json"]
    assert names("memory://job/rank0.json") == ["rank0.json"]
    assert "cannot be" in discover(["memory://job/rank7.json"]).unreadable[0][1]


def test_an_unknown_protocol_is_one_line() -> None:
    (path, why), *rest = discover(["nosuch://bucket/x"]).unreadable
    assert path == "nosuch://bucket/x"
    assert "\n" not in why
    assert not rest


def test_numbers_sort_as_numbers() -> None:
    assert sorted(["r10.json", "r9.json", "r2b", "r2a"], key=natural) == ["r2a", "r2b", "r9.json", "r10.json"]
