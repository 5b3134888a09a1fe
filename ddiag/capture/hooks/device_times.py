"""Device times of NCCL collectives, when asked for: ``DDIAG_DEVICE_TIMING=1``.

The future of an NCCL collective is complete as soon as it is enqueued, and runs its callbacks at once on a stream that
has been joined to the collective's own: an event recorded there happens when the collective is over. ``Work.wait`` is
never called: it would let go of tensors that the collective still needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ddiag.capture.clock import now_ns
from ddiag.capture.door import guarded
from ddiag.capture.hooks.device_timer import DeviceTimer
from ddiag.capture.recorder import Recorder

VARIABLE = "DDIAG_DEVICE_TIMING"

Begun = tuple[int, Any]
"""host time, event"""


class DeviceTimes:
    """*cuda* is ``torch.cuda``."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._timer = DeviceTimer(partial(cuda.Event, enable_timing=True))

    def begin(self) -> Begun | None:
        """A collective is about to be enqueued; None when it cannot be timed (a CUDA graph is being captured)."""
        if self._cuda.is_current_stream_capturing():
            return None
        now = now_ns()
        event = self._timer.begin(now)
        return None if event is None else (now, event)

    def follow(self, token: int, begun: Begun, work: Any) -> None:
        """The call has returned *work*."""
        now, event = begun
        try:
            future = None if work is None else work.get_future()
        except RuntimeError:
            future = None
        if future is None:
            self._timer.drop(event)
            return
        future.add_done_callback(guarded("device_times", lambda _future: self._timer.end(token, now, event)))

    def resolve(self, active: Recorder) -> None:
        self._timer.resolve(active)


def wanted(environment: Mapping[str, str], torch: Any) -> DeviceTimes | None:
    """None unless asked for and there is a device."""
    if environment.get(VARIABLE) != "1" or not torch.cuda.is_available():
        return None
    return DeviceTimes(torch.cuda)
