"""The wait for the next batch: ``_BaseDataLoaderIter.__next__``, and how full the queue was when it was asked."""

from __future__ import annotations

import fcntl
import termios
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Phase
from ddiag.schema.steps import UNKNOWN

_NOTHING = bytes(4)
"""A C int of zero."""


def _on() -> bool:
    return True


torch_grad: Callable[[], bool] = _on
"""``torch.is_grad_enabled`` once there is torch."""


def install(module: ModuleType, patches: Patches) -> None:
    global torch_grad
    torch_grad = module.torch.is_grad_enabled
    iterator = module._BaseDataLoaderIter
    patches.replace(iterator, "__next__", lambda original: around(original, "dataloader", _before, _after))


def _before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[recorder.Recorder, int, Any, int] | None:
    active = recorder.current
    if active is None:
        return None
    iterator, got = args[0], 0
    if active.on_training_thread():
        active.forget_optimizers()
        active.asks_for_data(id(getattr(iterator, "_dataset", None)), grad=torch_grad())
        totals = active.totals
        totals.loader_queue, totals.loader_workers = ready(iterator)
        got = received(iterator)
    return active, active.enter(Phase.INPUT), iterator, got


def _after(token: tuple[recorder.Recorder, int, Any, int], _result: Any, failed: bool) -> None:
    active, entered, iterator, got = token
    active.leave(entered, failed)
    if not failed and active.on_training_thread():
        totals = active.totals
        totals.loader_queue = in_order(totals.loader_queue, received(iterator) - got)


def ready(iterator: Any) -> tuple[int, int]:
    """(batches that workers have made and nobody has taken, worker processes); those a thread has yet to pin count."""
    workers = getattr(iterator, "_num_workers", UNKNOWN)
    queue, made = getattr(iterator, "_data_queue", None), getattr(iterator, "_worker_result_queue", None)
    if queue is None:
        return UNKNOWN, workers
    try:
        return _sent(queue) + (_sent(made) if made is not None and made is not queue else 0), workers
    except NotImplementedError:  # macOS has no sem_getvalue
        return UNKNOWN, workers


def _sent(queue: Any) -> int:
    """How many are in *queue*. A worker counts a batch as put before it has pickled it, which takes its interpreter."""
    count = int(queue.qsize())
    reader = getattr(queue, "_reader", None)
    if count and reader is not None and fcntl.ioctl(reader.fileno(), termios.FIONREAD, _NOTHING) == _NOTHING:
        return 0
    return count


def received(iterator: Any) -> int:
    """Batches that have come through the queue so far; batches arrive in any order, and are given out in theirs."""
    return int(getattr(iterator, "_send_idx", 0)) - int(getattr(iterator, "_tasks_outstanding", 0))


def in_order(queued: int, taken: int) -> int:
    """Of *queued* batches, those that were of use: none where *taken* more had to come until the next in turn did.

    It may also have come before its turn, and needs none from the queue (*taken* is 0 then).
    """
    if queued < 0:
        return queued
    return 0 if taken > queued else max(queued, 1 if taken == 0 else 0)
