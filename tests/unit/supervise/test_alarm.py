"""When ranks that make no progress are taken to hang, and when they are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddiag.supervise.alarm import Alarm, judge
from ddiag.supervise.progress import FIRST_STEP, Standing

TRAINING = Standing(rank=0, pid=100, quiet_s=0.1, usual_s=0.2)


def job(*changed: Standing, ranks: int = 4) -> list[Standing]:
    by_rank = {one.rank: one for one in changed}
    return [by_rank.get(rank) or replace(TRAINING, rank=rank, pid=100 + rank) for rank in range(ranks)]


def rank(number: int, quiet_s: float, **more: object) -> Standing:
    return replace(TRAINING, rank=number, pid=100 + number, quiet_s=quiet_s, **more)  # type: ignore[arg-type]


def alarm(standings: list[Standing], after_s: float | None = None, **more: float) -> tuple[int, ...]:
    found = judge(standings, after_s, **more)
    return found.ranks if isinstance(found, Alarm) else ()


def test_a_job_that_trains_gives_no_alarm() -> None:
    assert alarm(job()) == ()


def test_all_ranks_that_stand_still_are_named() -> None:
    assert alarm([rank(number, 21.0) for number in range(4)]) == (0, 1, 2, 3)


def test_one_rank_that_stands_still_is_enough() -> None:
    assert alarm(job(rank(2, 25.0))) == (2,)


def test_a_pause_of_a_few_seconds_is_none() -> None:
    assert alarm([rank(number, 15.0) for number in range(4)]) == ()


@pytest.mark.parametrize(("quiet_s", "named"), [(100.0, ()), (130.0, (0, 1, 2, 3))])
def test_long_steps_get_several_of_their_own_length(quiet_s: float, named: tuple[int, ...]) -> None:
    assert alarm([rank(number, quiet_s, usual_s=30.0) for number in range(4)]) == named


def test_what_the_user_set_counts_instead() -> None:
    assert alarm([rank(number, 6.0, usual_s=30.0) for number in range(4)], 5.0) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("work", "quiet_s"), [(FIRST_STEP, 250.0), ("checkpoint", 500.0), ("evaluation", 250.0), ("compile", 500.0)]
)
def test_all_ranks_at_long_work_are_left_alone(work: str, quiet_s: float) -> None:
    assert alarm([rank(number, quiet_s, busy_with=work) for number in range(4)]) == ()


def test_long_work_has_an_end_too() -> None:
    assert alarm([rank(number, 301.0, busy_with=FIRST_STEP) for number in range(4)]) == (0, 1, 2, 3)


def test_a_checkpoint_that_is_always_long_may_be_long_again() -> None:
    assert alarm([rank(number, 1000.0, busy_with="checkpoint", longest_s=400.0) for number in range(4)]) == ()


def test_those_who_wait_for_an_evaluation_of_one_rank_are_an_alarm_after_half_a_minute() -> None:
    waiting = [rank(number, 29.0) for number in (1, 2, 3)]
    evaluating = rank(0, 5.0, busy_with="evaluation")
    assert alarm(job(evaluating, *waiting)) == ()
    assert alarm(job(evaluating, *(replace(one, quiet_s=31.0) for one in waiting))) == (1, 2, 3)


def test_those_who_wait_while_rank_0_saves_are_given_two_minutes() -> None:
    saving = rank(0, 100.0, busy_with="checkpoint")
    assert alarm(job(saving, *(rank(number, 100.0) for number in (1, 2, 3)))) == ()
    assert alarm(job(saving, *(rank(number, 121.0) for number in (1, 2, 3)))) == (1, 2, 3)


def test_a_dead_rank_is_no_excuse_for_those_who_wait_for_it() -> None:
    dead = rank(0, 25.0, busy_with="checkpoint", alive=False)
    assert alarm(job(dead, *(rank(number, 24.0) for number in (1, 2, 3)))) == (0, 1, 2, 3)


def test_after_an_alarm_that_was_none_the_next_takes_longer() -> None:
    still = [rank(number, 30.0) for number in range(4)]
    assert alarm(still, patience=1.0) == (0, 1, 2, 3)
    assert alarm(still, patience=2.0) == ()
