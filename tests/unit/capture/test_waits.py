"""Waiting for a call that has no future ends that call's record, and no other's."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from ddiag.capture.hooks import following, waits
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Flag, Kind, Op, State
from ddiag.schema.ring import Record
from tests.unit.capture.reading import records


@pytest.fixture
def make_work() -> Iterator[Any]:
    """Makes what torch returns of a call."""

    class Work:
        def wait(self) -> bool:
            return True

    module = types.ModuleType("torch.distributed.distributed_c10d")
    module.Work = Work  # type: ignore[attr-defined]
    patches = Patches()
    waits.install(module, patches)
    yield Work
    patches.restore()
    waits.issued.token, waits.issued.work = -1, None
    waits.unwaited.clear()


def received(active: Recorder, work: object) -> int:
    token = active.begin_collective(Op.RECV, 0)
    active.issued(token)
    waits.ends_when_waited(active, token, work)
    return token


def calls(active: Recorder) -> list[Record]:
    return records(active.files, Kind.COLLECTIVE)


def test_the_wait_for_another_call_leaves_a_hung_one_open(active: Recorder, make_work: Any) -> None:
    reduced, hung = make_work(), make_work()
    received(active, hung)
    assert reduced.wait()
    assert [State(one.state) for one in calls(active)] == [State.ISSUED]
    assert hung.wait()
    (record,) = calls(active)
    assert record.state == State.DONE
    assert record.flags == Flag.END_IS_WAIT
    assert waits.issued.work is None, "what torch keeps for a call is not kept any longer"


def test_only_the_last_call_can_be_followed(active: Recorder, make_work: Any) -> None:
    first, second = make_work(), make_work()
    received(active, first)
    received(active, second)
    first.wait()
    second.wait()
    assert [(State(one.state), Flag(one.flags)) for one in calls(active)] == [
        (State.ISSUED, Flag.END_UNKNOWN),
        (State.DONE, Flag.END_IS_WAIT),
    ]
    assert not waits.unwaited


def test_nothing_is_kept_when_the_recording_ends(active: Recorder, make_work: Any) -> None:
    received(active, make_work())
    following.drain()
    assert waits.issued.work is None
    assert not waits.unwaited
