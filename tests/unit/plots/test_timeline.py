"""The timeline: which step and ranks, and spans thinned without hiding that they are."""

from __future__ import annotations

import json

import numpy as np

from ddiag.model.run import Run
from ddiag.model.signals import Signals
from ddiag.plots.timeline import MOST_RANKS, MOST_SPANS, Timeline, payload, timeline
from tests.builders import RunBuilder
from tests.factories import budget_table, make_signals
from tests.report_cases import busy_run


def shown(signals: Signals, run: Run, culprits: tuple[int, ...] = (), outlined: tuple[int, ...] = ()) -> Timeline:
    line = timeline(signals, run, culprits, outlined=outlined)
    assert line is not None
    return line


def test_it_shows_the_longest_steady_step() -> None:
    table = budget_table(ranks=2, steps=3)
    longest = table.with_columns(step_ms=table["step_ms"] + (table["step"] == 1).cast(int) * 10.0)
    line = shown(make_signals(job_facts={"ranks": (0, 1)}, step_budget={"table": longest}), busy_run(ranks=2, steps=3))
    assert line.step == 1
    assert line.length_ns == 200_000_000


def test_every_lane_holds_the_spans_of_its_step_only() -> None:
    line = shown(make_signals(), busy_run(per_step=40))
    lanes = {lane.activity.key: lane for lane in line.ranks[0].lanes}
    assert list(lanes) == ["compute", "transfer", "copy", "input", "sync"]
    assert lanes["compute"].start[0] == 8_000_000
    assert len(lanes["compute"].start) == 40
    assert lanes["sync"].end[0] - lanes["sync"].start[0] == 6_000_000
    assert line.spans == 8 * (40 + 40 + 1 + 1 + 1)


def test_waiting_is_the_first_part_of_a_communication_span() -> None:
    line = shown(make_signals(), busy_run())
    comm = next(lane for lane in line.ranks[0].lanes if lane.activity.key == "transfer")
    assert line.has_wait
    assert (comm.waited > 0).all()
    assert (comm.waited <= comm.end - comm.start).all()


def test_spans_too_close_to_be_seen_become_one_block_that_says_so() -> None:
    story = RunBuilder()
    for k in range(1000):
        story.kernel("tiny", 10 + k * 0.01, 0.005)
    story.kernel("long", 50, 100)
    line = shown(make_signals(job_facts={"ranks": (0,)}, input_wait=None), story.build())
    compute = line.ranks[0].lanes[0]
    assert line.spans == 1001
    assert compute.count.sum() == 1001
    assert len(compute.start) == 2
    assert (compute.start[0], compute.end[0]) == (10_000_000, 10_000_000 + 999 * 10_000 + 5_000)
    assert [line.names[k] for k in compute.name] == ["tiny", "long"]
    assert line.drawn == 2


def test_the_number_of_blocks_is_bounded_whatever_the_trace() -> None:
    story = RunBuilder()
    rng = np.random.default_rng(7)
    starts = np.sort(rng.uniform(0, 199, 60_000))
    for k, start in enumerate(starts):
        story.kernel("k", float(start), 0.0005, stream=k % 3)
    line = shown(make_signals(job_facts={"ranks": (0,)}, input_wait=None), story.build())
    assert line.drawn <= MOST_SPANS
    assert sum(int(lane.count.sum()) for rank in line.ranks for lane in rank.lanes) == line.spans == 60_000


def test_of_many_ranks_the_culprit_the_slowest_and_the_fastest_are_shown() -> None:
    ranks = tuple(range(40))
    waits = {rank: 5.0 + rank for rank in ranks}
    signals = make_signals(job_facts={"ranks": ranks, "hosts": ()}, steps=1, step_budget={"comm_wait_ms": waits})
    line = shown(signals, busy_run(ranks=40, steps=1, per_step=3), culprits=(33,), outlined=(33,))
    numbers = [rank.rank for rank in line.ranks]
    assert len(numbers) == MOST_RANKS
    assert {0, 1, 33, 39} <= set(numbers)
    assert line.ranks_total == 40
    assert [rank.rank for rank in line.ranks if rank.culprit] == [33]


def test_a_host_only_trace_shows_outermost_operators() -> None:
    story = RunBuilder(device_kind="cpu").op("outer", 10, 50).op("inner", 20, 10).op("next", 70, 5)
    line = shown(make_signals(job_facts={"ranks": (0,)}, input_wait=None), story.build())
    compute = line.ranks[0].lanes[0]
    assert [line.names[k] for k in compute.name] == ["outer", "next"]


def test_a_run_without_spans_has_no_timeline() -> None:
    signals = make_signals(job_facts={"ranks": (0,)}, input_wait=None)
    assert timeline(signals, Run({})) is None
    assert timeline(Signals(), busy_run(ranks=1, steps=1)) is None


def test_the_payload_is_small_plain_json() -> None:
    data = payload(shown(make_signals(), busy_run(), culprits=(7,), outlined=(7,)))
    text = json.dumps(data, allow_nan=False)
    assert len(text) < 100_000
    assert data["ranks"][7]["culprit"] is True  # type: ignore[index]
    assert data["length"] == 200_000.0
