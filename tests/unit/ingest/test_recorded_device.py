"""What the notes of a job with devices say."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from ddiag.ingest import load
from ddiag.ingest.recorded_device import HOST_TIMES, NOT_TIMED, device_notes
from ddiag.model.run import Run
from tests.recordings import healthy, write_run

GIB = 1 << 30


def _calls(*kinds: tuple[str, str]) -> dict[str, pl.DataFrame]:
    """Collectives by name and source."""
    return {"collectives": pl.DataFrame(kinds, schema=["name", "source"], orient="row")}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([("gloo:all_reduce", "host")], []),
        ([("nccl:all_reduce", "host")], [NOT_TIMED]),
        (
            [("nccl:all_reduce", "kernel")] * 3 + [("nccl:broadcast", "host"), ("gloo:barrier", "host")],
            ["NCCL collectives were timed on the device: 75% of those recorded"],
        ),
        (
            [("nccl:all_reduce", "kernel"), ("gloo:barrier", "host")],
            ["NCCL collectives were timed on the device: 100% of those recorded"],
        ),
    ],
)
def test_whether_calls_were_timed(kinds: list[tuple[str, str]], expected: list[str]) -> None:
    assert device_notes(_calls(*kinds)) == expected


def test_nothing_recorded_tells_nothing() -> None:
    assert device_notes({}) == []


def _recorded(folder: Path, **changes: int) -> Run:
    return load([str(write_run(folder / "run", *healthy(**changes)))])


def test_a_job_with_a_device_says_whose_times_phases_are(tmp_path: Path) -> None:
    on_device = _recorded(tmp_path / "device", device_bytes=GIB, reserved_bytes=2 * GIB)
    assert HOST_TIMES in on_device.coverage.notes
    assert HOST_TIMES not in _recorded(tmp_path / "cpu").coverage.notes
