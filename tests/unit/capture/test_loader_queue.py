"""How many batches a loader has ready."""

from __future__ import annotations

import queue
from types import SimpleNamespace

from ddiag.capture.hooks.dataloader import ready
from ddiag.schema.steps import UNKNOWN


def filled(count: int) -> queue.Queue[int]:
    made: queue.Queue[int] = queue.Queue()
    for number in range(count):
        made.put(number)
    return made


def test_batches_that_a_thread_has_yet_to_pin_are_ready_too() -> None:
    made = filled(3)
    pinning = SimpleNamespace(_num_workers=4, _worker_result_queue=made, _data_queue=filled(1))
    assert ready(pinning) == (4, 4)


def test_without_pinning_there_is_one_queue() -> None:
    made = filled(3)
    assert ready(SimpleNamespace(_num_workers=4, _worker_result_queue=made, _data_queue=made)) == (3, 4)


def test_a_loader_without_workers_has_no_queue() -> None:
    assert ready(SimpleNamespace(_num_workers=0)) == (UNKNOWN, 0)
