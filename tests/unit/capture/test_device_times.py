"""Timing on a device is asked for, skips what cannot be timed, and makes nobody wait but a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddiag.capture.hooks import device_times
from ddiag.capture.hooks.device_times import OPTION, VARIABLE, DeviceTimes, choose, unseen
from ddiag.capture.recorder import Recorder
from ddiag.schema.folder import Manifest, write_manifest
from ddiag.schema.phases import Flag, Kind, Op, State
from tests.unit.capture.reading import records

HERE = SimpleNamespace(type="cuda", index=0)
COMPUTE = "compute"
"""The stream the training computes on."""


@dataclass
class Stream:
    priority: int

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -3


@dataclass
class Cuda:
    """As much of ``torch.cuda`` as timing needs; it has one stream at a time, as torch has."""

    capturing: bool = False
    available: bool = True
    device: int = 0
    now: Any = COMPUTE
    """The current stream."""
    waited: list[Any] = field(default_factory=list)
    """Streams that were made to wait for a collective."""
    queried: int = 0
    Stream: Any = Stream

    def is_available(self) -> bool:
        return self.available

    def current_device(self) -> int:
        return self.device

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802 - torch's name
        assert enable_timing
        return Event(self)


@dataclass
class Event:
    cuda: Cuda
    on: Any = None
    """The stream it was recorded on."""

    def record(self) -> None:
        self.on = self.cuda.now

    def query(self) -> bool:
        assert not self.cuda.capturing, "a query spoils the capture of a graph"
        self.cuda.queried += 1
        return self.on is not None

    def elapsed_time(self, later: Event) -> float:
        return 1.0


@dataclass
class Work:
    """A call's; *over* as soon as it is enqueued, as with NCCL."""

    cuda: Cuda
    over: bool = True

    def get_future(self) -> Work:
        return self

    def done(self) -> bool:
        return self.over

    def wait(self) -> None:
        assert self.over, "the recorder never makes the host wait"
        self.cuda.waited.append(self.cuda.now)


class Unfinished:
    """One of a group of calls that are still being coalesced."""

    def get_future(self) -> Work:
        raise RuntimeError("no future yet")


@pytest.fixture
def cuda() -> Cuda:
    return Cuda()


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_times, "current", None)


def timed(active: Recorder, times: DeviceTimes, work: Any) -> int:
    begun = times.begin(HERE)
    assert begun is not None
    token = active.begin_collective(Op.ALL_REDUCE, 0)
    times.follow(token, begun, work)
    return token


@pytest.mark.parametrize(
    ("environment", "option", "cuda", "expected"),
    [
        ({VARIABLE: "1"}, False, Cuda(), True),
        ({}, True, Cuda(), True),
        ({VARIABLE: "0"}, True, Cuda(), False),
        ({}, False, Cuda(), False),
        ({VARIABLE: "1"}, True, Cuda(available=False), False),
    ],
)
def test_only_when_asked_and_possible(
    tmp_path: Path, environment: dict[str, str], option: bool, cuda: Cuda, expected: bool
) -> None:
    write_manifest(tmp_path, Manifest("0.1", "job", (), "torchrun", 1, "node0", 1, options={OPTION: option}))
    assert (choose(environment, tmp_path, SimpleNamespace(cuda=cuda)) is not None) == expected
    assert (unseen() == []) == expected
    assert device_times.asked({}, tmp_path / "without a supervisor") is False


def test_a_collective_is_timed_on_a_stream_that_nobody_else_uses(active: Recorder, cuda: Cuda) -> None:
    times = DeviceTimes(cuda)
    timed(active, times, Work(cuda))
    (own,) = cuda.waited
    assert own == Stream(priority=-3)
    assert cuda.now == COMPUTE
    times.resolve(active)
    (found,) = records(active.files, Kind.COLLECTIVE)
    assert found.state == State.DONE
    assert found.flags & Flag.DEVICE_TIMED


def test_it_begins_where_the_compute_stream_comes_to_it(active: Recorder, cuda: Cuda) -> None:
    begun = DeviceTimes(cuda).begin(HERE)
    assert begun is not None
    assert begun.event.on == COMPUTE


def test_while_a_graph_is_captured_nothing_is_recorded_or_asked(active: Recorder, cuda: Cuda) -> None:
    times = DeviceTimes(cuda)
    timed(active, times, Work(cuda))
    cuda.capturing = True
    assert times.begin(HERE) is None
    times.resolve(active)
    assert cuda.queried == 0
    cuda.capturing = False
    times.resolve(active)
    (found,) = records(active.files, Kind.COLLECTIVE)
    assert found.state == State.DONE


@pytest.mark.parametrize("device", [SimpleNamespace(type="cuda", index=1), SimpleNamespace(type="xpu", index=0)])
def test_another_device_is_left_alone(cuda: Cuda, device: Any) -> None:
    assert DeviceTimes(cuda).begin(device) is None


@pytest.mark.parametrize("work", [None, Unfinished(), Work(Cuda(), over=False)])
def test_what_the_host_would_have_to_wait_for_stays_untimed(active: Recorder, cuda: Cuda, work: Any) -> None:
    times = DeviceTimes(cuda)
    timed(active, times, work)
    times.resolve(active)
    (found,) = records(active.files, Kind.COLLECTIVE)
    assert found.state == State.OPEN
    assert cuda.waited == []
