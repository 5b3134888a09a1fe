"""When steps become slow, and stay so, all ranks are asked to profile some of the next ones."""

from __future__ import annotations

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
    for _ in range(20):
        rank.steps(10, ms=100)
        rank.steps(1, ms=900)  # one slow step now and then is no change
        assert slow.look() is None
    assert not request_file(tmp_path).exists()


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


def test_it_is_the_same_whether_steps_are_seen_one_by_one_or_together(rank: Rank, tmp_path: Path) -> None:
    one_by_one = SlowSteps(tmp_path)
    found = []
    for number in range(70):
        rank.steps(1, ms=100 if number < 60 else 200)
        found.append(one_by_one.look())
    together = SlowSteps(tmp_path).look()
    assert [request for request in found if request is not None] == [together]


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
