"""Collectives, spans, samples and what all records cost."""

from __future__ import annotations

import math
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema import names
from ddiag.schema.phases import Flag, Kind, Mark, Op, Pause, Phase, State, Unit
from ddiag.schema.ring import COUNTED_BYTES, COUNTED_CALLS, COUNTED_WAIT_NS
from tests.unit.capture.reading import live, records, steps_of


def test_a_collective_is_told_from_begin_to_end(active: Recorder) -> None:
    group, label = active.names.id("default_pg"), active.names.id("bucket 0")
    dtype = active.names.dtype("float32")
    token = active.begin_collective(Op.ALL_REDUCE, group, label, Flag.ASYNC, 400, 400, dtype, -1, 3)
    (record,) = records(active.files, Kind.COLLECTIVE)
    assert (record.state, record.end_ns, record.seq) == (State.OPEN, 0, 3)
    active.issued(token)
    assert records(active.files)[0].state == State.ISSUED
    assert active.complete(token)
    (record,) = records(active.files)
    assert (record.op, record.group, record.label, record.dtype) == (Op.ALL_REDUCE, group, label, dtype)
    assert (record.bytes_in, record.state, record.flags) == (400, State.DONE, Flag.ASYNC)
    assert record.end_ns >= record.start_ns >= record.enqueue_ns
    assert names.decode(active.files.names.read_bytes()) == ["default_pg", "bucket 0", "float32"]
    active.engine_step()
    (step,) = steps_of(active.files)
    assert (step.comm_count, step.comm_bytes) == (1, 400)
    assert live(active.files).last_seq == 3


def test_a_collective_timed_on_the_device_keeps_its_flags(active: Recorder) -> None:
    token = active.begin_collective(Op.ALL_GATHER, 0, flags=Flag.ASYNC)
    active.device_timed(token, 10, 20)
    (record,) = records(active.files)
    assert (record.start_ns, record.end_ns, record.flags) == (10, 20, Flag.ASYNC | Flag.DEVICE_TIMED)


def test_a_failed_collective_says_so(active: Recorder) -> None:
    active.complete(active.begin_collective(Op.BARRIER, 0), ok=False)
    assert records(active.files)[0].state == State.FAILED


def test_counts_of_a_tier_outside_python_are_taken_per_step(active: Recorder) -> None:
    active.counted_outside = True
    words = active.ring.words
    for words[COUNTED_CALLS], words[COUNTED_BYTES], words[COUNTED_WAIT_NS] in [(10, 1000, 50), (13, 1400, 90)]:
        active.engine_step()
    found = steps_of(active.files)
    assert [(step.comm_count, step.comm_bytes, step.comm_wait_ns) for step in found] == [(10, 1000, 50), (3, 400, 40)]


def test_spans_pauses_and_marks(active: Recorder) -> None:
    token = active.begin_span(Kind.UNIT, Unit.UNSHARD, label_id=active.names.id("layers.0"))
    active.complete(token)
    active.pause(Pause.GC, 5, 2.0)
    active.mark(Mark.LOSS_SCALE, 1024.0)
    unit, pause, mark = records(active.files)
    assert (unit.kind, unit.op, unit.state) == (Kind.UNIT, Unit.UNSHARD, State.DONE)
    assert (pause.kind, pause.start_ns, pause.value) == (Kind.PAUSE, 5, 2.0)
    assert (mark.kind, mark.value) == (Kind.MARK, 1024.0)


def test_the_supervisor_sees_where_the_process_is(active: Recorder) -> None:
    active.leave(active.enter(Phase.INPUT))
    active.engine_step()
    active.enter(Phase.BACKWARD)
    seen = live(active.files)
    assert (seen.step, seen.phase, seen.closed_ns) == (1, Phase.BACKWARD, 0)
    assert seen.progress_ns == seen.phase_since_ns > 0
    active.close()
    assert live(active.files).closed_ns > 0


def test_samplers_fill_the_step_and_a_bad_one_is_only_counted(active: Recorder) -> None:
    def sample(totals: StepTotals) -> None:
        totals.rss_bytes = 123

    def bad(_totals: StepTotals) -> None:
        raise ValueError

    active.at_step_end("bad", bad)
    active.at_step_end("good", sample)
    active.engine_step()
    (step,) = steps_of(active.files)
    assert step.rss_bytes == 123
    assert live(active.files).errors == 1


def test_unknown_stays_unknown(active: Recorder) -> None:
    active.engine_step()
    (step,) = steps_of(active.files)
    assert (step.rss_bytes, step.device_allocated_bytes, step.alloc_retries, step.loader_queue) == (-1, -1, -1, -1)
    assert math.isnan(step.loss_scale)
    assert math.isnan(step.grad_norm)


def test_the_wall_clock_is_read_at_the_end_of_each_step(active: Recorder) -> None:
    active.engine_step()
    (step,) = steps_of(active.files)
    assert abs(step.wall_end_ns - time.time_ns()) < 60e9


def test_memory_stays_flat_over_a_million_records(active: Recorder) -> None:
    group = active.names.id("g")

    def many(count: int) -> None:
        for _ in range(count):
            active.complete(active.begin_collective(Op.ALL_REDUCE, group, -1, 0, 4, 4, 0, -1, 1))

    many(2000)
    tracemalloc.start()
    many(500)
    before = tracemalloc.get_traced_memory()[0]
    many(2000)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 2000
    resident = _resident_bytes()
    many(1_000_000)
    assert _resident_bytes() - resident < 1 << 20
    assert live(active.files).head > 1_000_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("what", ["phase", "collective"])
def test_a_mark_costs_about_a_microsecond(active: Recorder, what: str) -> None:
    """CPU time of the best of several rounds, which other load on the machine cannot add to; the bound is generous."""
    rounds, each = 9, 3000
    best = math.inf
    for _ in range(rounds):
        began = time.thread_time_ns()
        if what == "phase":
            for _ in range(each):
                active.leave(active.enter(Phase.FORWARD))
        else:
            for _ in range(each):
                active.complete(active.begin_collective(Op.ALL_REDUCE, 0, -1, 0, 4, 4, 0, -1, 1))
        best = min(best, (time.thread_time_ns() - began) / each)
    print(f"{what}: {best:.0f} ns begun and ended")
    assert best < 8000


def test_a_sampler_is_called_again_when_it_asked_for_that(active: Recorder) -> None:
    each: list[int] = []
    once: list[int] = []

    def far_off(totals: StepTotals) -> int:
        once.append(totals.start_ns)
        return time.monotonic_ns() + 10**12

    active.at_step_end("once", far_off)
    active.engine_step()
    active.engine_step()
    assert len(once) == 1
    active.at_step_end("each", lambda totals: each.append(totals.start_ns))
    active.engine_step()
    active.engine_step()
    assert (len(once), len(each)) == (1, 2)


def test_what_was_counted_outside_before_training_is_no_part_of_the_first_step(active: Recorder) -> None:
    active.counted_outside = True
    active.ring.words[COUNTED_CALLS] = 7
    active.leave(active.enter(Phase.FORWARD))
    active.ring.words[COUNTED_CALLS] = 9
    active.engine_step()
    (step,) = steps_of(active.files)
    assert step.comm_count == 2
