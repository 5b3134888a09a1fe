"""The command that builds the native kernel: it fails politely, and never leaves half a library."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ddiag.capture.native import build

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiler(tmp_path: Path, script: str) -> str:
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def built(cache: Path) -> list[Path]:
    return list(cache.rglob("*.so"))


def test_what_the_compiler_made_is_in_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = 'while [ "$1" != -o ]; do shift; done; echo library > "$2"'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert build.main([]) == 0
    assert [path.read_text() for path in built(cache)] == ["library\n"]
    monkeypatch.setenv("CXX", "/nowhere/compiler")
    assert build.main(["--if-missing"]) == 0
    assert "already there" in capsys.readouterr().out


def test_a_compiler_that_refuses(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = 'while [ "$1" != -o ]; do shift; done; echo half > "$2"; echo "no such header" >&2; exit 1'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert build.main([]) == 1
    assert "no such header" in capsys.readouterr().out
    assert built(cache) == []


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CXX", "/nowhere/compiler")
    assert build.main(["--quiet"]) == 1
    assert capsys.readouterr().out == ""
    assert built(cache) == []


def test_one_build_at_a_time(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "exit 1"))
    torch = pytest.importorskip("torch")
    with build.only_one(build.cached(torch.version)) as mine:
        assert mine
        assert build.main(["--if-missing"]) == 0, "somebody else is at it"
