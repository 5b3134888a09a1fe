"""What the recorder says it takes is measured where it is spent."""

from __future__ import annotations

import time

import pytest

from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Phase
from ddiag.schema.ring import COUNTED_CALLS
from ddiag.schema.steps import UNKNOWN
from tests.unit.capture.reading import live, steps_of


def test_a_slow_mark_is_in_the_overhead_of_its_step(active: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = active.ring.pack

    def slow(*fields: int) -> None:
        time.sleep(0.004)
        pack(*fields)

    active.leave(active.enter(Phase.INPUT))
    active.engine_step()
    monkeypatch.setattr(active, "_pack", slow)
    active.leave(active.enter(Phase.INPUT))
    active.leave(active.enter(Phase.INPUT))
    monkeypatch.undo()
    active.engine_step()
    quick, dear = steps_of(active.files)
    assert 0 < quick.overhead_ns < 4_000_000
    assert 8_000_000 <= dear.overhead_ns < 100_000_000
    assert live(active.files).overhead_ns == quick.overhead_ns + dear.overhead_ns


def test_calls_that_are_counted_outside_python_are_part_of_it(active: Recorder) -> None:
    active.counted_outside = True
    active.engine_step()
    active.ring.words[COUNTED_CALLS] = 100_000
    active.engine_step()
    none, many = steps_of(active.files)
    assert many.overhead_ns - none.overhead_ns > 100_000_000
    assert many.comm_count == 100_000


def test_a_step_that_is_taken_up_again_adds_up() -> None:
    first, rest = StepTotals(0), StepTotals(10)
    rest.mark_ns, rest.alloc_retries = 5, 2
    first.mark_ns = 3
    first.absorb(rest)
    assert (first.mark_ns, first.alloc_retries) == (8, 2)
    first.absorb(StepTotals(20))
    assert first.alloc_retries == 2
    unknown = StepTotals(0)
    unknown.absorb(StepTotals(1))
    assert unknown.alloc_retries == UNKNOWN
