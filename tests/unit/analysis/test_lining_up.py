"""Lining up sequences of calls: by clock, by steadiness of the ends, by step number, or not at all."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from ddiag.analysis.lining_up import UNMATCHED, Sequence, line_up

EPOCH = 1_700_000_000_000_000_000
MS = 1_000_000
CODES = [1, 2, 2, 3]
"""The calls of one step."""


def step_times(steps: int, jitter_ms: float, seed: int = 0) -> npt.NDArray[np.int64]:
    """Ends of four calls per step of about 100 ms."""
    random = np.random.default_rng(seed)
    begins = np.cumsum(100 + random.normal(0, jitter_ms, steps))
    ends: npt.NDArray[np.int64] = ((begins[:, None] + np.array([20, 40, 60, 90])).ravel() * MS).astype(np.int64)
    return ends


def sequence(ends: npt.NDArray[np.int64], first: int = 0, *, base: int = EPOCH, numbered: bool = False) -> Sequence:
    """The calls from step *first* on, as one rank recorded them."""
    steps = np.repeat(np.arange(len(ends) // 4), 4)[4 * first :]
    codes = np.tile(np.array(CODES), len(ends) // 4)[4 * first :]
    return Sequence(codes.astype(np.int64), ends[4 * first :] + base, steps if numbered else np.full(len(steps), -1))


def slots(**found: Sequence) -> dict[int, list[int]]:
    return {rank: slot.tolist() for rank, slot in line_up({int(k[1:]): v for k, v in found.items()}).items()}


def test_equal_windows_match_call_by_call() -> None:
    ends = step_times(5, 3)
    assert slots(r0=sequence(ends), r1=sequence(ends + 4000)) == {0: list(range(20)), 1: list(range(20))}


def test_a_window_that_begins_a_step_later_is_shifted_by_the_clock() -> None:
    ends = step_times(6, 3)
    found = slots(r0=sequence(ends), r1=sequence(ends, first=1))
    assert found[1] == list(range(4, 24))


def test_equal_counts_do_not_hide_a_shift() -> None:
    ends = step_times(6, 3)
    early, late = sequence(ends[:20]), sequence(ends, first=1)
    assert len(early) == len(late)
    assert slots(r0=early, r1=late)[1] == list(range(4, 24))


def test_without_a_common_clock_the_jitter_of_the_steps_decides() -> None:
    ends = step_times(8, 2)
    found = slots(r0=sequence(ends, base=0), r1=sequence(ends + 700, first=2, base=5))
    assert found[1] == list(range(8, 32))


def test_a_clock_that_is_off_by_a_step_is_overruled_by_the_ends() -> None:
    ends = step_times(8, 4)
    found = slots(r0=sequence(ends), r1=sequence(ends + 100 * MS))
    assert found[1] == list(range(32))


def test_one_different_call_per_step_is_enough_to_tell_a_shift() -> None:
    ends = np.cumsum(np.tile([2.0] * 9 + [50.0], 8)) * MS
    codes = np.ones(80, dtype=np.int64)
    steps = np.full(80, -1)
    noise = np.random.default_rng(1).integers(-3000, 3000, 80)
    early = Sequence(codes, ends.astype(np.int64) + EPOCH, steps)
    late = Sequence(codes, ends.astype(np.int64) + EPOCH + noise + 2 * MS, steps)
    assert slots(r0=early, r1=late)[1] == list(range(80))


def test_step_numbers_decide_where_neither_clock_nor_ends_can() -> None:
    ends = step_times(6, 0)
    plain = line_up({0: sequence(ends, base=0), 1: sequence(ends, first=1, base=0)})
    assert 1 not in plain
    numbered = slots(r0=sequence(ends, base=0, numbered=True), r1=sequence(ends, first=1, base=0, numbered=True))
    assert numbered[1] == list(range(4, 24))


def test_sequences_that_differ_in_operation_or_size_do_not_match() -> None:
    ends = step_times(5, 3)
    ours = sequence(ends)
    other = Sequence(ours.codes + 10, ours.ends_ns, ours.steps)
    assert 1 not in line_up({0: ours, 1: other})


def test_captures_of_different_times_do_not_match() -> None:
    ends = step_times(5, 3)
    hour = 3600 * 1000 * MS
    assert 1 not in line_up({0: sequence(ends), 1: sequence(step_times(5, 3, seed=9) + hour)})


def test_a_lost_record_costs_one_step_not_the_match() -> None:
    ends = step_times(5, 3)
    ours = sequence(ends, numbered=True)
    keep = np.arange(20) != 9
    other = Sequence(ours.codes[keep], ours.ends_ns[keep] + 5000, ours.steps[keep])
    found = line_up({0: ours, 1: other})[1]
    in_step_two = other.steps == 2
    assert (found[in_step_two] == UNMATCHED).all()
    assert found[~in_step_two].tolist() == [k for k in range(20) if k // 4 != 2]


def test_the_majority_is_lined_up_although_the_longest_sequence_is_foreign() -> None:
    ends = step_times(5, 3)
    foreign = sequence(step_times(9, 3))
    foreign = Sequence(foreign.codes * 7, foreign.ends_ns, foreign.steps)
    found = line_up({0: foreign, 1: sequence(ends), 2: sequence(ends + 900), 3: sequence(ends + 40)})
    assert sorted(found) == [1, 2, 3]


def test_a_single_call_is_matched_only_where_clocks_agree() -> None:
    one = np.array([3], dtype=np.int64), np.array([-1], dtype=np.int64)
    here = Sequence(one[0], np.array([EPOCH]), one[1])
    near, far = (Sequence(one[0], np.array([EPOCH + ms * MS]), one[1]) for ms in (1, 400))
    assert 1 in line_up({0: here, 1: near})
    assert 1 not in line_up({0: here, 1: far})


def test_a_short_sequence_finds_its_place_in_a_long_one() -> None:
    ends = step_times(30, 3)
    short = sequence(ends[: 4 * 13], first=11)
    assert slots(r0=sequence(ends), r1=short)[1] == list(range(44, 52))
    assert slots(r0=short, r1=sequence(ends[:12]))  # shorter than the window that is looked up, either way


def test_hundreds_of_ranks_take_well_under_a_second_each_hundred() -> None:
    ends = step_times(250, 3)
    random = np.random.default_rng(5)
    ranks = {rank: sequence(ends + int(random.normal(0, 2 * MS)), first=rank % 3) for rank in range(100)}
    begun = time.process_time()
    found = line_up(ranks)
    assert time.process_time() - begun < 5.0
    assert all(found[rank][0] == 4 * (rank % 3) for rank in ranks)


def test_a_clock_that_is_days_off_does_not_hide_the_same_steps() -> None:
    ends = step_times(6, 3)
    found = slots(r0=sequence(ends, numbered=True), r1=sequence(ends, base=EPOCH + 40 * 86_400_000 * MS, numbered=True))
    assert found[1] == list(range(24))


def test_the_same_steps_of_another_run_are_not_the_same_calls() -> None:
    one, other = step_times(6, 3, seed=1), step_times(6, 3, seed=2)
    found = slots(r0=sequence(one, numbered=True), r1=sequence(other, base=EPOCH + 3_600_000 * MS, numbered=True))
    assert set(found.get(1, [UNMATCHED])) == {UNMATCHED}
