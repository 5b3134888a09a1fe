"""Device times of NCCL collectives, when asked for: ``ddiag run --device-timing``, or ``DDIAG_DEVICE_TIMING=1``.

The future of an NCCL collective is complete as soon as it is enqueued. Waiting for it makes a stream, not the host,
wait for the collective: a stream of our own, on which an event is recorded that happens when the collective is over.
``Work.wait`` is never called: it would let go of tensors that the collective still needs. Nor is a callback added:
torch would run it on a stream of the pool it gives users theirs from, whose own work would then wait for the
collective.

It is not the default, however little it may cost, because torch marks the tensors of the collective as used on the
stream that waits (``record_stream``): their memory is free for others once that stream has come so far, and not as soon
as the host lets go of it. The memory peak of a job that frees gathered parameters early can rise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ddiag.capture.clock import now_ns
from ddiag.capture.hooks.device_timer import DeviceTimer
from ddiag.capture.recorder import Recorder
from ddiag.errors import InputError
from ddiag.schema.folder import read_manifest

VARIABLE = "DDIAG_DEVICE_TIMING"
OPTION = "device_timing"
"""In the manifest of a run."""


class Begun(NamedTuple):
    """A collective that is about to be enqueued."""

    now_ns: int
    event: Any
    timing: _Device

    def drop(self) -> None:
        """It was not enqueued, or cannot be timed."""
        self.timing.timer.drop(self.event)


class _Device:
    """What one device's collectives are timed with."""

    def __init__(self, cuda: Any) -> None:
        # Streams come from a pool per priority; those of the highest are hardly ever taken, so that none is shared.
        _, highest = cuda.Stream.priority_range()
        self.stream = cuda.Stream(priority=highest)
        self.timer = DeviceTimer(partial(cuda.Event, enable_timing=True))


class DeviceTimes:
    """*cuda* is ``torch.cuda``."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._devices: dict[int, _Device] = {}

    def begin(self, device: Any) -> Begun | None:
        """A collective of tensors on *device* is about to be enqueued; None when it cannot be timed.

        That is while a CUDA graph is captured, and on another device than the current one, whose stream would wait.
        """
        if device.type != "cuda" or device.index != self._cuda.current_device():
            return None
        if self._cuda.is_current_stream_capturing():
            return None
        timing = self._devices.get(device.index)
        if timing is None:
            timing = self._devices[device.index] = _Device(self._cuda)
        now = now_ns()
        event = timing.timer.begin(now)
        return None if event is None else Begun(now, event, timing)

    def follow(self, token: int, begun: Begun, work: Any) -> None:
        """The call has returned *work*."""
        future = _over_for_the_host(work)
        if future is None:
            begun.drop()
            return
        with self._cuda.stream(begun.timing.stream):
            future.wait()
            begun.timing.timer.end(token, begun.now_ns, begun.event)

    def resolve(self, active: Recorder) -> None:
        """Not while a graph is captured: asking an event then would spoil the capture."""
        if self._devices and not self._cuda.is_current_stream_capturing():
            for timing in self._devices.values():
                timing.timer.resolve(active)


def _over_for_the_host(work: Any) -> Any:
    """The future of *work* if the host would not wait for it; None otherwise (other backends, coalesced calls)."""
    try:
        future = None if work is None else work.get_future()
    except RuntimeError:
        return None
    return future if future is not None and future.done() else None


def asked(environment: Mapping[str, str], run: Path) -> bool:
    """By the variable, or by an option of the supervisor of *run*."""
    if VARIABLE in environment:
        return environment[VARIABLE] == "1"
    try:
        return bool(read_manifest(run).options.get(OPTION))
    except InputError:
        return False


current: DeviceTimes | None = None
"""Of this recording; None when it does not time on a device."""


def choose(environment: Mapping[str, str], run: Path, torch: Any) -> DeviceTimes | None:
    """Set and return :data:`current`. A device is looked for only where timing is asked for."""
    global current
    current = DeviceTimes(torch.cuda) if asked(environment, run) and torch.cuda.is_available() else None
    return current


def unseen() -> list[str]:
    """What a tier that issues from the host then does not see."""
    return [] if current is not None else ["when calls on a device end"]
