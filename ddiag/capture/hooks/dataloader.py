"""The wait for the next batch: ``_BaseDataLoaderIter.__next__``, and how full the queue was when it was asked."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Phase
from ddiag.schema.steps import UNKNOWN


def _on() -> bool:
    return True


torch_grad: Callable[[], bool] = _on
"""``torch.is_grad_enabled`` once there is torch."""


def install(module: ModuleType, patches: Patches) -> None:
    global torch_grad
    torch_grad = module.torch.is_grad_enabled
    iterator = module._BaseDataLoaderIter
    patches.replace(iterator, "__next__", lambda original: around(original, "dataloader", _before, _after))


def _before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[recorder.Recorder, int] | None:
    active = recorder.current
    if active is None:
        return None
    if active.on_training_thread():
        active.forget_optimizers()
        active.asks_for_data(id(getattr(args[0], "_dataset", None)), grad=torch_grad())
        totals = active.totals
        totals.loader_queue, totals.loader_workers = ready(args[0])
    return active, active.enter(Phase.INPUT)


def _after(token: tuple[recorder.Recorder, int], _result: Any, failed: bool) -> None:
    token[0].leave(token[1], failed)


def ready(iterator: Any) -> tuple[int, int]:
    """(batches that workers have made and nobody has taken, worker processes); those a thread has yet to pin count."""
    workers = getattr(iterator, "_num_workers", UNKNOWN)
    queue, made = getattr(iterator, "_data_queue", None), getattr(iterator, "_worker_result_queue", None)
    if queue is None:
        return UNKNOWN, workers
    try:
        return queue.qsize() + (made.qsize() if made is not None and made is not queue else 0), workers
    except NotImplementedError:  # macOS has no sem_getvalue
        return UNKNOWN, workers
