"""The value of a one-element tensor without waiting for the device that computes it."""

from __future__ import annotations

import sys
from typing import Any


class LateScalar:
    """Gives a CPU tensor's value at once, a device tensor's value at a later call.

    On a device the value is copied to pinned memory behind the work that computes it, and read once an event says that
    the copy is done; nothing synchronises. Tensor subclasses (DTensor) are left alone: reading them may communicate.
    """

    def __init__(self) -> None:
        self._host: Any = None
        self._copied: Any = None
        self._waiting = False

    def offer(self, tensor: Any) -> float | None:
        """*tensor*'s value if it is at hand, else that of an earlier one, else None."""
        torch = sys.modules["torch"]
        if type(tensor) is not torch.Tensor or tensor.numel() != 1 or tensor.layout != torch.strided:
            return None
        if tensor.device.type == "cpu":
            return float(tensor.detach())
        if tensor.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        earlier = self._arrived()
        if not self._waiting:
            self._send(torch, tensor)
        return earlier

    def _arrived(self) -> float | None:
        if not self._waiting or not self._copied.query():
            return None
        self._waiting = False
        return float(self._host)

    def _send(self, torch: Any, tensor: Any) -> None:
        if self._host is None:
            self._host = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._copied = torch.cuda.Event()
        self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._copied.record()
        self._waiting = True
