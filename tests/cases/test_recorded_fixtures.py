"""Real jobs recorded by ``ddiag run`` (``tools/record_fixture.py``): the planted fault comes first, with its rank."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit.diagnosis import Diagnosis

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
SURROUNDINGS = {"DD206", "DD209"}
"""What the job cannot help: its warm-up, and other work on the machine that recorded it."""


@cache
def _diagnosis(name: str) -> Diagnosis:
    return diagnose(load([str(RUNS / f"{name}.zip")]))


def _first(name: str) -> tuple[str, tuple[int, ...]]:
    found = [finding for finding in _diagnosis(name).findings if finding.rule not in SURROUNDINGS]
    return found[0].rule, found[0].culprits.ranks


def test_slow_input_on_one_rank() -> None:
    assert _first("slow_input") == ("DD502", (1,))


def test_buckets_far_too_small() -> None:
    rule, _ = _first("tiny_buckets")
    assert rule == "DD403"


def test_the_healthy_twin_is_left_in_peace() -> None:
    assert {finding.rule for finding in _diagnosis("healthy").findings} <= SURROUNDINGS


@pytest.mark.parametrize("name", ["healthy", "slow_input", "tiny_buckets"])
def test_everything_recorded_is_used(name: str) -> None:
    coverage = _diagnosis(name).coverage
    assert coverage.ranks_seen == coverage.ranks_expected == (0, 1)
    assert coverage.dropped_records == 0
    assert not coverage.unreadable


def test_fixtures_are_small_and_say_nothing_of_the_machine() -> None:
    import zipfile

    for path in RUNS.glob("*.zip"):
        assert path.stat().st_size < 300_000
        with zipfile.ZipFile(path) as archive:
            texts = b"".join(archive.read(name) for name in archive.namelist() if not name.endswith(("ring", ".steps")))
        assert b"/work/" not in texts
        assert b"/tmp/" not in texts
        assert b"/root" not in texts
