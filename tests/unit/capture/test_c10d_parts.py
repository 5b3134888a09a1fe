"""Small parts of the communication hooks: schemas, sizes, numbers, the Flight Recorder's settings."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import IntEnum

import pytest

from ddiag.capture.door import DOOR
from ddiag.capture.hooks import following
from ddiag.capture.hooks.c10d_ops import Places, first, hook_operations, places, size
from ddiag.capture.hooks.flight_recorder import NEW_NAME, OLD_NAME, prepare
from ddiag.capture.hooks.following import Told, told_of
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Op, State
from tests.unit.capture.reading import records


@dataclass(frozen=True)
class Tensor:
    nbytes: int


def test_where_a_schema_keeps_things() -> None:
    assert places(["tensors", "process_group", "reduce_op", "sparse_indices", "async_op", "timeout"]) == Places(
        group=1, asynchronous=4, both=0
    )
    split = ["output", "input", "process_group", "output_split_sizes", "input_split_sizes", "async_op", "timeout"]
    assert places(split) == Places(group=2, asynchronous=5, given=1, taken=0)
    assert places(["tensors", "process_group", "dst", "tag"]) == Places(group=1, peer=2, both=0)
    assert places(["output_tensors", "input_tensors", "process_group", "timeout"]).asynchronous == -1, "torch 2.4"


def test_sizes_of_nested_lists() -> None:
    assert size([[Tensor(4), Tensor(8)], [Tensor(1)]]) == 13
    assert size(None) == size([]) == 0
    assert first([[Tensor(4)]]) == Tensor(4)
    assert first([[]]) is None


def told(active: Recorder, token: int, group: int) -> Told:
    """What the backend of *group* holds of a call."""
    held = told_of(group)
    one = Told((active.ring, token, held))
    held.add(id(one))
    return one


def test_a_group_that_is_destroyed_waits_for_its_own_calls_alone(active: Recorder) -> None:
    own, others = told(active, 0, 1), [told(active, 1, 2)]
    backend = [own]
    del own
    over = threading.Timer(1.0, backend.clear)
    over.start()
    began = time.monotonic()
    following.drain_groups([1, 3], "2.4.1+cu121")
    assert time.monotonic() - began >= 1.0 > following.SOON_S, "torch 2.4 hangs unless all of it is over"
    began = time.monotonic()
    following.drain_groups([2], "2.13.0+cpu")
    assert following.SOON_S <= time.monotonic() - began < 20, "newer torch needs but a moment"
    others.clear()
    following.drain_groups([2], "2.4.1")


class Future:
    """Of a collective; *error* is what it ended with."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def value(self) -> None:
        if self._error is not None:
            raise self._error


def test_a_backend_that_calls_back_ends_the_record(active: Recorder) -> None:
    group = active.names.id("g")
    good, bad, strange = [active.begin_collective(Op.ALL_REDUCE, group) for _ in range(3)]
    told(active, good, group)(Future())
    told(active, bad, group)(Future(RuntimeError("connection closed by peer")))
    before = DOOR.errors
    told(active, strange, group)(Future(LookupError("not ours to raise into a backend's thread")))
    assert [record.state for record in records(active.files)] == [State.DONE, State.FAILED, State.OPEN]
    assert DOOR.errors == before + 1


@pytest.mark.parametrize(
    ("version", "cuda", "given", "expected"),
    [
        ("2.4.1", "12.1", {}, {OLD_NAME: "2000"}),
        ("2.4.1", None, {}, {}),
        ("2.4.1", "12.1", {OLD_NAME: "0"}, {OLD_NAME: "0"}),
        ("2.8.0+cu128", "12.8", {NEW_NAME: "5"}, {NEW_NAME: "5"}),
        ("2.13.0", "13.0", {}, {}),
    ],
)
def test_the_flight_recorder_is_asked_for_only_where_nobody_decided(
    version: str, cuda: str | None, given: dict[str, str], expected: dict[str, str]
) -> None:
    environment = dict(given)
    assert prepare(environment, torch_version=version, cuda=cuda) == (environment != given)
    assert environment == expected


def test_the_hooks_know_torchs_operations_by_number() -> None:
    class Names(IntEnum):
        SEND = 0
        ALLREDUCE = 3
        NEW_WINDOW = 5

    none = -1
    assert hook_operations(Names) == [int(Op.SEND), none, none, int(Op.ALL_REDUCE), none, none]
