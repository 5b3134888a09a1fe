"""Device times of collectives, with a device that exists only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ddiag.capture.hooks import device_timer
from ddiag.capture.hooks.device_timer import DeviceTimer
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Flag, Kind, Op, State
from tests.unit.capture.reading import records

BOOT_NS = 7_000_000_000
"""Host time at which the device's own clock was zero."""


@dataclass
class Device:
    """Reaches an event when what was enqueued before it is done."""

    host_ns: int = BOOT_NS
    free_at_ns: int = BOOT_NS
    made: list[Event] = field(default_factory=list)

    def event(self) -> Event:
        self.made.append(Event(self))
        return self.made[-1]

    def works_for(self, duration_ns: int) -> None:
        self.free_at_ns = max(self.free_at_ns, self.host_ns) + duration_ns


@dataclass
class Event:
    device: Device
    at_ns: int = -1

    def record(self) -> None:
        self.at_ns = max(self.device.host_ns, self.device.free_at_ns)

    def query(self) -> bool:
        return self.device.host_ns >= self.at_ns

    def elapsed_time(self, later: Event) -> float:
        assert self.query(), "asking for the time of an event that has not happened raises"
        assert later.query(), "asking for the time of an event that has not happened raises"
        return (later.at_ns - self.at_ns) / 1e6

    def synchronize(self) -> None:
        raise AssertionError("the recorder never waits")


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def timer(device: Device) -> DeviceTimer:
    return DeviceTimer(device.event)


def issue(active: Recorder, timer: DeviceTimer, device: Device, duration_ns: int) -> int:
    token = active.begin_collective(Op.ALL_REDUCE, 0)
    enqueued = device.host_ns
    start = timer.begin(enqueued)
    device.works_for(duration_ns)
    timer.end(token, enqueued, start)
    return token


def times(active: Recorder) -> list[tuple[int, int]]:
    found = [one for one in records(active.files, Kind.COLLECTIVE) if one.state == State.DONE]
    assert all(one.flags & Flag.DEVICE_TIMED for one in found)
    return [(one.start_ns, one.end_ns) for one in found]


def test_nothing_is_written_before_it_is_over(active: Recorder, timer: DeviceTimer, device: Device) -> None:
    issue(active, timer, device, 1_000_000)
    device.host_ns += 999_999
    assert timer.resolve(active) == 0
    device.host_ns += 1
    assert timer.resolve(active) == 1
    assert times(active) == [(BOOT_NS, BOOT_NS + 1_000_000)]


def test_queued_collectives_begin_when_the_device_comes_to_them(
    active: Recorder, timer: DeviceTimer, device: Device
) -> None:
    for _ in range(3):
        issue(active, timer, device, 2_000_000)
        device.host_ns += 10_000
    device.host_ns += 10_000_000
    assert timer.resolve(active) == 3
    assert times(active) == [(BOOT_NS + at * 2_000_000, BOOT_NS + (at + 1) * 2_000_000) for at in range(3)]


def test_a_busy_device_is_known_once_it_has_been_idle(active: Recorder, timer: DeviceTimer, device: Device) -> None:
    """The first anchor was enqueued behind other work: its host time is learnt from later collectives."""
    device.works_for(5_000_000)
    issue(active, timer, device, 1_000_000)
    device.host_ns += 20_000_000
    timer.resolve(active)
    issue(active, timer, device, 1_000_000)
    device.host_ns += 20_000_000
    timer.resolve(active)
    assert times(active)[1] == (BOOT_NS + 20_000_000, BOOT_NS + 21_000_000)
    issue(active, timer, device, 3_000_000)
    device.host_ns += 20_000_000
    timer.resolve(active)
    assert times(active)[2] == (BOOT_NS + 40_000_000, BOOT_NS + 43_000_000)


def test_events_are_used_again(active: Recorder, timer: DeviceTimer, device: Device) -> None:
    for _ in range(100):
        issue(active, timer, device, 1_000)
        device.host_ns += 1_000_000
        timer.resolve(active)
    assert len(device.made) == 3, "two, and the anchor"


def test_a_device_far_behind_leaves_the_rest_untimed(
    active: Recorder, timer: DeviceTimer, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_timer, "MAX_OPEN", 2)
    for _ in range(3):
        token: Any = active.begin_collective(Op.ALL_REDUCE, 0)
        start = timer.begin(device.host_ns)
        device.works_for(1_000_000)
        if start is not None:
            timer.end(token, device.host_ns, start)
    device.host_ns += 10_000_000
    assert timer.resolve(active) == 2
    assert len(times(active)) == 2


def test_a_new_anchor_keeps_float_times_exact(active: Recorder, timer: DeviceTimer, device: Device) -> None:
    issue(active, timer, device, 1_000)
    device.host_ns += device_timer.ANCHOR_NS + 1
    issue(active, timer, device, 1_000)
    device.host_ns += 1_000_000
    assert timer.resolve(active) == 2
    (_, _), (start, end) = times(active)
    assert (start, end) == (BOOT_NS + device_timer.ANCHOR_NS + 1, BOOT_NS + device_timer.ANCHOR_NS + 1_001)
