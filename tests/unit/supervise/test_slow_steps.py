"""When steps become slow, and stay so, all ranks are asked to profile some of the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ddiag.schema import steps
from ddiag.schema.folder import process_files
from ddiag.schema.profile import ProfileRequest, read_request, request_file
from ddiag.schema.steps import StepFlag
from ddiag.supervise.slow_steps import MAX_WINDOWS, SlowSteps


class Rank:
    """Writes step summaries as a recorder does."""

    def __init__(self, run: Path, *, rank: int = 0, attempt: int = 0) -> None:
        files = process_files(run, attempt=attempt, rank=rank, pid=10 + rank)
        files.folder.mkdir(parents=True, exist_ok=True)
        files.ring.touch()
        self._path = files.steps
        self._path.write_bytes(steps.pack_header(pid=1, rank=rank, attempt=attempt, wall_ns=0, mono_ns=0))
        self._step = 0

    def steps(self, count: int, *, ms: float, flags: int = 0) -> None:
        for _ in range(count):
            record = steps.empty(self._step)._replace(end_ns=int(ms * 1e6), flags=flags)
            with self._path.open("ab") as file:
                file.write(steps.pack(record))
            self._step += 1


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_steady_steps_ask_for_nothing(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    for jitter in range(20):
        rank.steps(10, ms=100 + jitter)
        rank.steps(1, ms=195)
        assert slow.look() is None
    assert not request_file(tmp_path).exists()


def test_a_single_outlier_says_nothing_about_the_next(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    for normal in (60, 13, 90):
        rank.steps(normal, ms=100)
        rank.steps(1, ms=900)
        assert slow.look() is None


def outliers(rank: Rank, distances: Sequence[int], ms: float = 300.0) -> None:
    """After steps of 100 ms, outliers at these distances."""
    for distance in distances:
        rank.steps(distance - 1, ms=100)
        rank.steps(1, ms=ms)


def test_the_next_of_periodic_outliers_is_profiled_with_its_neighbours(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    rank.steps(50, ms=100)
    outliers(rank, [10, 10])
    assert slow.look() is None, "two may be chance"
    outliers(rank, [10])
    request = slow.look()
    assert request is not None
    assert (request.first + 1 - 59) % 10 == 0, "the outlier is in the middle"
    assert request.first >= 79 + 2000 / 130, "the mean step tells how many begin meanwhile"
    assert request.last == request.first + 2
    assert request.reason == "one step in 10 takes up to 300 ms instead of 100 ms"
    assert read_request(request_file(tmp_path)) == request


def test_outliers_at_any_distance_get_a_window_that_holds_one(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    rank.steps(50, ms=100)
    outliers(rank, [8, 13, 9, 12])
    request = slow.look()
    assert request is not None
    assert request.last - request.first + 1 == 17, "one and a half times their mean distance"
    assert request.reason.startswith("now and then a step takes up to 300 ms")


def test_rare_outliers_at_any_distance_would_need_too_long_a_window(rank: Rank, tmp_path: Path) -> None:
    rank.steps(50, ms=100)
    outliers(rank, [40, 31, 52, 45, 38, 61])
    assert SlowSteps(tmp_path).look() is None


def test_what_takes_several_steps_is_one_outlier(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    rank.steps(50, ms=100)
    for _ in range(3):
        rank.steps(8, ms=100)
        rank.steps(2, ms=300)
    request = slow.look()
    assert request is not None
    assert "one step in 10" in request.reason


def test_tiny_steps_that_jitter_ask_for_nothing(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    for _ in range(20):
        rank.steps(9, ms=2)
        rank.steps(1, ms=6)
    assert slow.look() is None


def test_periodic_outliers_are_asked_for_as_often_as_slow_steps(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    asked = 0
    for _ in range(200):
        outliers(rank, [10])
        asked += slow.look() is not None
    assert asked == MAX_WINDOWS


def test_steps_that_stay_slow_are_profiled_after_every_rank_has_read_the_request(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    rank.steps(60, ms=100)
    assert slow.look() is None
    rank.steps(5, ms=200)
    request = slow.look()
    assert isinstance(request, ProfileRequest)
    assert request.first >= 64 + 2000 / 200
    assert request.last == request.first + 2
    assert read_request(request_file(tmp_path)) == request
    assert "instead of 100 ms" in request.reason


def test_steps_seen_late_are_judged_alike_but_the_window_lies_ahead_of_the_newest(rank: Rank, tmp_path: Path) -> None:
    one_by_one = SlowSteps(tmp_path)
    found = []
    for number in range(70):
        rank.steps(1, ms=100 if number < 60 else 200)
        found.append(one_by_one.look())
    (early,) = [request for request in found if request is not None]
    together = SlowSteps(tmp_path).look()
    assert together is not None
    assert together.reason == early.reason
    assert together.first == 69 + 2 + 2000 / 200
    assert early.first < together.first


@pytest.mark.parametrize("flag", [StepFlag.CHECKPOINT, StepFlag.EVALUATION, StepFlag.PROFILED, StepFlag.COMPILED])
def test_steps_whose_length_is_explained_do_not_count(flag: StepFlag, rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    rank.steps(60, ms=100)
    rank.steps(10, ms=500, flags=int(flag))
    assert slow.look() is None


def test_there_is_an_end_to_asking(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    asked, ms = 0, 10.0
    for _ in range(8):
        rank.steps(60, ms=ms)
        ms *= 2
        rank.steps(10, ms=ms)
        asked += slow.look() is not None
    assert asked == MAX_WINDOWS


def test_a_restart_begins_anew(rank: Rank, tmp_path: Path) -> None:
    slow = SlowSteps(tmp_path)
    rank.steps(60, ms=100)
    slow.look()
    Rank(tmp_path, attempt=1).steps(10, ms=500)
    assert slow.look() is None


def test_a_half_written_step_waits_for_its_rest(rank: Rank, tmp_path: Path) -> None:
    rank.steps(60, ms=100)
    path = process_files(tmp_path, attempt=0, rank=0, pid=10).steps
    whole = path.read_bytes()
    rank.steps(5, ms=200)
    more = path.read_bytes()
    slow = SlowSteps(tmp_path)
    path.write_bytes(more[: len(whole) + 100])
    assert slow.look() is None
    path.write_bytes(more)
    assert slow.look() is not None
