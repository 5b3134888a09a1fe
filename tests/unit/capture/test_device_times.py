"""Timing on a device is asked for, skips what cannot be timed, and never calls ``wait``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddiag.capture.hooks.device_times import VARIABLE, DeviceTimes, wanted
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Flag, Kind, Op, State
from tests.unit.capture.reading import records


@dataclass
class Event:
    enable_timing: bool
    recorded: bool = False

    def record(self) -> None:
        self.recorded = True

    def query(self) -> bool:
        return self.recorded

    def elapsed_time(self, later: Event) -> float:
        return 1.0


@dataclass
class Cuda:
    capturing: bool = False
    available: bool = True
    Event: Callable[..., Any] = field(default=Event)

    def is_available(self) -> bool:
        return self.available

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


class Future:
    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        call(self)


class Work:
    def get_future(self) -> Future:
        return Future()

    def wait(self) -> None:
        raise AssertionError("the recorder never waits")


class Unfinished(Work):
    """One of a group of calls that are still being coalesced."""

    def get_future(self) -> Future:
        raise RuntimeError("no future yet")


@dataclass
class Torch:
    cuda: Cuda


@pytest.mark.parametrize(
    ("environment", "cuda", "expected"),
    [
        ({VARIABLE: "1"}, Cuda(), True),
        ({}, Cuda(), False),
        ({VARIABLE: "1"}, Cuda(available=False), False),
    ],
)
def test_only_when_asked_and_possible(environment: dict[str, str], cuda: Cuda, expected: bool) -> None:
    assert (wanted(environment, Torch(cuda)) is not None) == expected


def test_a_collective_is_timed(active: Recorder) -> None:
    times = DeviceTimes(Cuda())
    begun = times.begin()
    assert begun is not None
    token = active.begin_collective(Op.ALL_REDUCE, 0)
    times.follow(token, begun, Work())
    times.resolve(active)
    (found,) = records(active.files, Kind.COLLECTIVE)
    assert found.state == State.DONE
    assert found.flags & Flag.DEVICE_TIMED


def test_nothing_is_recorded_while_a_graph_is_captured() -> None:
    assert DeviceTimes(Cuda(capturing=True)).begin() is None


@pytest.mark.parametrize("work", [None, Unfinished()])
def test_what_has_no_future_stays_untimed(active: Recorder, work: Any) -> None:
    times = DeviceTimes(Cuda())
    begun = times.begin()
    assert begun is not None
    token = active.begin_collective(Op.ALL_REDUCE, 0)
    times.follow(token, begun, work)
    times.resolve(active)
    (found,) = records(active.files, Kind.COLLECTIVE)
    assert found.state == State.OPEN
