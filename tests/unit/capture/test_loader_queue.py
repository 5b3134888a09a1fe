"""How many batches a loader has ready."""

from __future__ import annotations

import multiprocessing
import queue
import time
from types import SimpleNamespace

import pytest

from ddiag.capture.hooks.dataloader import in_order, ready, received
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


class Slow:
    """What takes its time to be pickled."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(0.5)
        return int, ()


def test_a_batch_that_is_still_being_pickled_is_not_there() -> None:
    made = multiprocessing.Queue()
    made.put(Slow())
    loader = SimpleNamespace(_num_workers=1, _worker_result_queue=made, _data_queue=made)
    assert made.qsize() == 1
    assert ready(loader) == (0, 1)
    deadline = time.monotonic() + 10
    while ready(loader) != (1, 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ready(loader) == (1, 1)
    assert made.get() == 0


def test_without_pinning_there_is_one_queue() -> None:
    made = filled(3)
    assert ready(SimpleNamespace(_num_workers=4, _worker_result_queue=made, _data_queue=made)) == (3, 4)


def test_a_loader_without_workers_has_no_queue() -> None:
    assert ready(SimpleNamespace(_num_workers=0)) == (UNKNOWN, 0)


def test_batches_of_other_workers_do_not_shorten_the_wait_for_the_next_in_turn() -> None:
    assert in_order(2, taken=1) == 2
    assert in_order(2, taken=2) == 2
    assert in_order(1, taken=2) == 0, "the one that was there was not the next"
    assert in_order(0, taken=1) == 0


def test_a_batch_that_came_before_its_turn_is_ready() -> None:
    assert in_order(0, taken=0) == 1
    assert in_order(UNKNOWN, taken=0) == UNKNOWN


def test_received_are_those_sent_out_and_not_outstanding() -> None:
    assert received(SimpleNamespace(_send_idx=7, _tasks_outstanding=4)) == 3
    assert received(SimpleNamespace()) == 0


data = pytest.importorskip("torch.utils.data")


class Uneven(data.Dataset):  # type: ignore[name-defined,misc]
    """Every second batch, those of the second worker, takes its time."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        time.sleep(0.1 if index % 2 else 0.0)
        return index


def test_what_torch_counts_is_what_is_taken_here() -> None:
    """Batches of the quick worker wait in the queue while the next in turn is the slow one's."""
    batches = iter(data.DataLoader(Uneven(), batch_size=None, num_workers=2))
    waits, found = [], []
    for _ in range(12):
        queued, got, began = ready(batches)[0], received(batches), time.monotonic()
        next(batches)
        waits.append(time.monotonic() - began)
        found.append(in_order(queued, received(batches) - got))
    assert all(ready_ == 0 for wait, ready_ in zip(waits, found, strict=True) if wait > 0.05)
    assert sum(wait > 0.05 for wait in waits) >= 3
    assert received(batches) == 12
