"""Many files in processes: same answer, and a process that dies costs one file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddiag.ingest import load
from ddiag.ingest.read import Refused, read_source
from ddiag.ingest.sources import Source
from ddiag.ingest.trace import Trace
from ddiag.ingest.workers import Outcome, read_all
from tests.shared import REPOSITORY
from tests.unit.ingest.kineto_text import healthy, write


def read_or_die(source: Source) -> Outcome:
    """Stands for a reader that the kernel kills."""
    if "deadly" in source.path:
        os._exit(9)
    return read_source(source)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [write(tmp_path / f"rank{rank}.json.gz", healthy(rank, 4)) for rank in range(4)]


def test_processes_give_what_one_process_gives(paths: list[str]) -> None:
    here, there = load(paths, jobs=1), load(paths, jobs=2)
    assert here.coverage == there.coverage
    for name, table in here.tables.items():
        assert table.equals(there.tables[name]), name


def test_a_process_that_dies_costs_its_file_only(tmp_path: Path, paths: list[str]) -> None:
    deadly = write(tmp_path / "deadly.json", healthy())
    sources = [Source(path) for path in [*paths[:2], deadly]]
    seen: list[int] = []
    outcomes = read_all(sources, 2, lambda done, total, path: seen.append(done), read=read_or_die)
    assert [type(outcome) for outcome in outcomes] == [Trace, Trace, Refused]
    assert isinstance(outcomes[2], Refused)
    assert "out of memory" in outcomes[2].why
    assert seen == [1, 2, 3]


def test_a_script_without_main_guard_is_not_run_again(tmp_path: Path, paths: list[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"from ddiag.ingest import load\nprint(len(load({paths!r}, jobs=2).coverage.inputs))\n")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("4\n", "")
