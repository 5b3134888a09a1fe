"""A command line run in this process, in a folder of its own, and small traces to give it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ddiag.cli import main
from tools.synth import SCENARIOS, generate


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """``run("analyze", traces)`` in an empty folder; stdout and stderr as a shell would see them."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def command(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        sys.stdout.flush()
        return Result(code, *capfd.readouterr())

    return command


def _traces(scenario: str, folder: Path) -> Path:
    generate(replace(SCENARIOS[scenario].job, ranks=2, steps=3), folder)
    return folder


@pytest.fixture(scope="session")
def slow_input(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two ranks whose batches are made in the training process."""
    return _traces("input_bound_single_process", tmp_path_factory.mktemp("slow_input"))


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two ranks with nothing wrong."""
    return _traces("healthy", tmp_path_factory.mktemp("sound"))
