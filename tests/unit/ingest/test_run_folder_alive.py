"""A run folder is readable while processes write into it, and after they were killed at any instant."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from ddiag.errors import InputError
from ddiag.ingest import load
from tests.recordings import write_run

REPOSITORY = Path(__file__).resolve().parents[3]
WRITER = """
import sys
from pathlib import Path
from tests.recordings import Plan, Writer, files_of
plan = Plan(rank=0, world=1, capacity=256, steps=0)
files = files_of(Path(sys.argv[1]), plan)
files.folder.mkdir(parents=True, exist_ok=True)
writer = Writer(files, plan)
print("writing", flush=True)
step = 0
while True:
    writer.step(step)
    step += 1
"""


def _writer(run: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _is_whole(run: Path) -> int:
    """Every record tells a consistent story; returns how many there were."""
    found = load([str(run)])
    calls, phases, steps = found.table("collectives"), found.table("phases"), found.table("step_summaries")
    assert steps["step"].to_list() == list(range(steps.height))
    numbers = calls["seq"].to_list()
    assert len(numbers) == len(set(numbers)), "no record twice"
    names = calls.select((pl.col("seq") % 2).alias("bucket"), "label").unique()
    assert set(names.rows()) <= {(0, "ddp0/bucket0"), (1, "ddp0/bucket1")}, "no record mixed from two"
    for table in (calls, phases):
        over = table.filter(pl.col("end_ns").is_not_null())
        assert (over["end_ns"] >= over["start_ns"]).all()
    return calls.height + phases.height


def test_it_reads_while_a_process_writes_as_fast_as_it_can(tmp_path: Path) -> None:
    process = _writer(write_run(tmp_path, ended=False))
    try:
        counts = [_is_whole(tmp_path) for _ in range(8)]
    finally:
        process.kill()
        process.wait()
    assert max(counts) > 100


@pytest.mark.parametrize("seed", range(5))
def test_it_reads_after_a_kill_at_any_instant(tmp_path: Path, seed: int) -> None:
    process = _writer(write_run(tmp_path, ended=False))
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        records = _is_whole(tmp_path)
    except InputError as error:  # killed before the first step: the ring is there, and empty
        records, said = 0, str(error)
        if not ("nothing" in said or "trained" in said):
            raise
    assert records <= 256


def test_a_rank_that_has_just_begun_is_a_rank_without_steps(tmp_path: Path) -> None:
    from tests.recordings import Plan, write_process

    write_process(write_run(tmp_path, ended=False), Plan(steps=0, closed=False))
    found = load([str(tmp_path)])
    assert found.coverage.ranks_seen == (0,)
    assert found.table("steps").is_empty()
