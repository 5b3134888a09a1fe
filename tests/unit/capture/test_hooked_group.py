"""A group's hooks, called as torch calls them: what they record, and how they number it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from ddiag.capture.door import DOOR
from ddiag.capture.hooks import device_times
from ddiag.capture.hooks.c10d_hooks import HooksTier
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Flag, Kind, Op, State
from ddiag.schema.ring import NO_DTYPE
from tests.unit.capture.reading import records


class Names(IntEnum):
    """Of torch's ``HookOpName``, as its enumeration converts to a number."""

    SEND = 0
    RECV = 1
    BROADCAST = 2
    ALLREDUCE = 3
    ALLGATHER = 5
    BARRIER = 8
    NEW_WINDOW = 12


@dataclass(frozen=True)
class Tensor:
    nbytes: int = 8
    dtype: str = "torch.float32"
    is_cpu: bool = True
    device: str = "cpu"
    layout: str = "strided"


class Sparse:
    """Of a sparse layout: torch raises where its size is asked for."""

    dtype = "torch.float32"
    is_cpu = is_sparse = True
    layout = "sparse"

    @property
    def nbytes(self) -> int:
        raise RuntimeError("nbytes is not defined for sparse tensors.")

    def _indices(self) -> Tensor:
        return Tensor(80)

    def _values(self) -> Tensor:
        return Tensor(40)


class Work:
    """Of a host backend."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def get_future(self) -> Any:
        told = SimpleNamespace(value=self.future.result)
        told.add_done_callback = lambda callback: self.future.add_done_callback(lambda _future: callback(told))
        return told


@dataclass
class Call:
    """What torch hands to both hooks."""

    name: Names = Names.ALLREDUCE
    input_tensors: list[Tensor] = field(default_factory=lambda: [Tensor()])
    output_tensors: list[Tensor] = field(default_factory=list)
    async_op: bool = True
    root: int = -1
    op_id: int = 0
    work: Work | None = None


class Group:
    """Counts as gloo does: sends and receives as well."""

    def __init__(self, counted: int = 0) -> None:
        self.counted = counted
        self.hooks: dict[str, Any] = {}

    def _get_sequence_number_for_group(self) -> int:
        if self.counted < 0:
            raise RuntimeError("not implemented")
        return self.counted

    def register_pre_hook(self, _number: int, hook: Any) -> None:
        self.hooks["pre"] = hook

    def register_post_hook(self, _number: int, hook: Any) -> None:
        self.hooks["post"] = hook

    def unregister_pre_hook(self, _number: int) -> None:
        del self.hooks["pre"]

    def unregister_post_hook(self, _number: int) -> None:
        del self.hooks["post"]

    def issue(self, *calls: Call) -> None:
        for call in calls:
            self.counted += self.counted >= 0
            call.op_id = self.counted
            for when in ("pre", "post"):
                if when in self.hooks:
                    self.hooks[when](call)


@pytest.fixture
def tier(active: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[HooksTier]:
    distributed = SimpleNamespace(HookOpName=Names)
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=distributed), strided="strided")
    )
    monkeypatch.setattr(device_times, "current", None)
    made = HooksTier()
    made.bind(active)
    yield made
    made.stop()


def grouped(tier: HooksTier, active: Recorder, counted: int = 0) -> Group:
    group = Group(counted)
    tier.add(group, "g", active.names.id("g"))
    return group


def seen(active: Recorder) -> list[tuple[Op, int]]:
    """Operation and number of each recorded call."""
    return [(Op(record.op), record.seq) for record in records(active.files)]


def test_a_call_is_recorded_before_it_is_made_and_ends_when_the_backend_says_so(
    active: Recorder, tier: HooksTier
) -> None:
    work = Work()
    group = grouped(tier, active)
    group.hooks["pre"](Call(input_tensors=[Tensor(400)], work=work))
    (record,) = records(active.files)
    assert (record.state, record.bytes_in, record.bytes_out) == (State.OPEN, 400, 400)
    assert record.flags == Flag.ASYNC
    assert record.dtype == active.names.dtype("float32") != NO_DTYPE
    group.hooks["post"](Call(work=work))
    assert records(active.files)[0].state == State.ISSUED
    work.future.set_result(None)
    (record,) = records(active.files)
    assert record.state == State.DONE
    assert record.end_ns > record.enqueue_ns > 0


def test_what_a_call_takes_and_gives(active: Recorder, tier: HooksTier) -> None:
    group = grouped(tier, active)
    one, two = Tensor(100), Tensor(200)
    group.issue(
        Call(Names.ALLREDUCE, [one, two]),
        Call(Names.ALLGATHER, [one], [one, one], async_op=False),
        Call(Names.RECV, [], [two], root=1),
        Call(Names.SEND, [two], [], root=1),
        Call(Names.BARRIER, [one]),
        Call(Names.NEW_WINDOW, []),
    )
    found = [(Op(one.op), one.bytes_in, one.bytes_out, one.peer) for one in records(active.files)]
    assert found == [
        (Op.ALL_REDUCE, 300, 300, -1),
        (Op.ALL_GATHER, 100, 200, -1),
        (Op.RECV, 0, 200, 1),
        (Op.SEND, 200, 0, 1),
        (Op.BARRIER, 0, 0, -1),
    ]
    assert [one.dtype == NO_DTYPE for one in records(active.files)] == [False, False, False, False, True]
    assert [bool(one.flags & Flag.ASYNC) for one in records(active.files)] == [True, False, True, True, True]


def test_transfers_do_not_count_as_collectives(active: Recorder, tier: HooksTier) -> None:
    """Only two ranks of a group take part in one, so the others' numbers would differ."""
    group = grouped(tier, active)
    group.issue(Call(), Call(Names.SEND, root=1), Call(Names.SEND, root=2), Call(Names.BARRIER))
    group.issue(Call(Names.SEND, root=1), Call(Names.RECV, [], [Tensor()], root=1), Call())
    assert seen(active) == [
        (Op.ALL_REDUCE, 1),
        (Op.SEND, 1),
        (Op.SEND, 1),
        (Op.BARRIER, 2),
        (Op.SEND, 2),
        (Op.RECV, 1),
        (Op.ALL_REDUCE, 3),
    ]


def test_after_a_step_nobody_looked_at_torchs_count_goes_on(active: Recorder, tier: HooksTier) -> None:
    group = grouped(tier, active, counted=7)
    group.issue(Call())
    tier.look(False)
    assert not group.hooks
    group.issue(Call(), Call(), Call())
    tier.look(True)
    group.issue(Call(), Call())
    assert seen(active) == [(Op.ALL_REDUCE, 8), (Op.ALL_REDUCE, 12), (Op.ALL_REDUCE, 13)]


@pytest.mark.parametrize("counted", [0, -1])
def test_without_a_count_to_rely_on_there_is_no_number(active: Recorder, tier: HooksTier, counted: int) -> None:
    group = grouped(tier, active, counted)
    group.issue(Call(), *[Call(Names.SEND, root=1)] * (counted == 0))
    tier.look(False)
    tier.look(True)
    before = len(seen(active))
    group.issue(Call(), Call(Names.SEND, root=1), Call())
    assert seen(active)[before:] == [(Op.ALL_REDUCE, -1), (Op.SEND, -1), (Op.ALL_REDUCE, -1)]


def test_the_first_transfer_in_a_sampled_step_ends_the_numbering(active: Recorder, tier: HooksTier) -> None:
    group = grouped(tier, active)
    tier.look(False)
    tier.look(True)
    group.issue(Call(), Call(Names.SEND, root=1), Call())
    assert seen(active) == [(Op.ALL_REDUCE, 1), (Op.SEND, -1), (Op.ALL_REDUCE, -1)]


def test_a_call_on_a_device_is_not_followed(active: Recorder, tier: HooksTier) -> None:
    work = Work()
    grouped(tier, active).issue(Call(input_tensors=[Tensor(is_cpu=False)], work=work))
    work.future.set_result(None)
    (record,) = records(active.files)
    assert (record.state, record.end_ns) == (State.ISSUED, 0)
    assert record.flags & Flag.END_UNKNOWN


def test_a_call_on_a_device_that_raises_gives_its_event_back(active: Recorder, tier: HooksTier) -> None:
    dropped: list[str] = []
    begun = SimpleNamespace(drop=lambda: dropped.append("event"))
    tier.device = SimpleNamespace(begin=lambda _device: begun, resolve=lambda _active: None)  # type: ignore[assignment]
    group = grouped(tier, active)
    group.hooks["pre"](Call(input_tensors=[Tensor(is_cpu=False)]))
    active.engine_step()
    assert dropped == ["event"]
    assert records(active.files)[0].state == State.FAILED


def test_hooks_stay_in_a_group_that_other_threads_use(active: Recorder, tier: HooksTier) -> None:
    group = grouped(tier, active)
    thread = threading.Thread(target=group.issue, args=(Call(),))
    thread.start()
    thread.join()
    (record,) = records(active.files)
    assert record.thread != active.tid
    tier.look(False)
    assert group.hooks, "torch's list of hooks has no lock"
    group.issue(Call())
    assert len(records(active.files)) == 1


def test_a_failed_call_is_told_by_its_future(active: Recorder, tier: HooksTier) -> None:
    work = Work()
    grouped(tier, active).issue(Call(work=work))
    work.future.set_exception(RuntimeError("connection closed by peer"))
    assert records(active.files)[0].state == State.FAILED


def test_a_call_that_raises_is_not_under_way_any_more(active: Recorder, tier: HooksTier) -> None:
    """Torch calls no second hook then."""
    group = grouped(tier, active)
    pre = group.hooks["pre"]
    pre(Call(Names.BROADCAST, root=0))
    group.issue(Call())
    pre(Call(Names.BARRIER))
    active.engine_step()
    pre(Call(Names.ALLGATHER))
    inside = threading.Thread(target=pre, args=(Call(Names.BROADCAST, root=0),))
    inside.start()
    inside.join()
    active.close()
    assert [State(record.state) for record in records(active.files) if record.kind == Kind.COLLECTIVE] == [
        State.FAILED,
        State.DONE,
        State.FAILED,
        State.FAILED,
        State.OPEN,
    ], "the last is another thread's"


def test_a_hook_of_the_users_that_communicates_fails_nobody(active: Recorder, tier: HooksTier) -> None:
    group = grouped(tier, active)
    outer, inner = Call(op_id=1, work=Work()), Call(Names.BARRIER, op_id=2)
    group.hooks["pre"](outer)
    group.hooks["pre"](inner)
    group.hooks["post"](inner)
    assert outer.work is not None
    group.hooks["post"](outer)
    assert [State(one.state) for one in records(active.files)] == [State.ISSUED, State.DONE]
    outer.work.future.set_result(None)
    record = records(active.files)[0]
    assert record.state == State.DONE
    assert record.end_ns > record.enqueue_ns


def test_a_call_that_raised_is_not_taken_for_one_that_nobody_looked_at(active: Recorder, tier: HooksTier) -> None:
    """Hooks that other threads use stay, and torch calls them in all steps."""
    group = grouped(tier, active)
    good, bad = Call(), Call(op_id=99)

    def other_thread(*steps: Any) -> None:
        thread = threading.Thread(target=lambda: [step() for step in steps])
        thread.start()
        thread.join()

    other_thread(
        lambda: group.hooks["pre"](bad), lambda: tier.look(False), lambda: group.issue(good), lambda: tier.look(True)
    )
    (record,) = records(active.files)
    assert record.state == State.FAILED
    assert record.end_ns == record.enqueue_ns, "nobody knows when: no time is made up"


def test_a_call_in_another_group_shows_that_one_raised(active: Recorder, tier: HooksTier) -> None:
    first, second = grouped(tier, active), Group()
    tier.add(second, "h", active.names.id("h"))
    first.hooks["pre"](Call())
    second.hooks["pre"](Call(Names.BARRIER))
    assert [State(one.state) for one in records(active.files)] == [State.FAILED, State.OPEN]


def test_a_sparse_tensor_has_the_size_of_its_parts(active: Recorder, tier: HooksTier) -> None:
    grouped(tier, active).issue(Call(input_tensors=[Sparse()]))  # type: ignore[list-item]
    assert [(one.bytes_in, one.bytes_out) for one in records(active.files)] == [(120, 120)]
    assert DOOR.errors == 0


def test_ranks_that_look_at_other_steps_number_alike(active: Recorder, tier: HooksTier) -> None:
    """Torch counts some calls twice: a rank that looks at all steps must not count on by itself."""
    always, seldom = Group(), Group()
    tier.add(always, "a", active.names.id("a"))
    for step in range(4):
        always.counted += 1
        always.issue(Call())
        tier.step_ended(active.totals)
        assert seen(active)[-1] == (Op.ALL_REDUCE, 2 * step + 1)
    tier.look(False)
    tier.add(seldom, "s", active.names.id("s"))
    seldom.issue(Call(), Call(), Call())
    tier.look(True)
    seldom.issue(Call())
    assert seen(active)[-1] == (Op.ALL_REDUCE, 4), "a group made while nobody looked"


@pytest.mark.parametrize(
    ("spent_us", "followed", "expected_us"),
    [(50, 10, 50 + 230 + 400), (50, 0, 50 + 230), (1000, 10, 1000 + 1000 + 1500), (1000, 5, 1000 + 1000 + 750)],
    ids=["fast", "fast, on a device", "slow", "slow, half on a device"],
)
def test_what_looking_costs_follows_the_machine(
    active: Recorder, tier: HooksTier, spent_us: int, followed: int, expected_us: int
) -> None:
    """On a fast machine what was measured around our code on another; on a slow one as much as our own code takes."""
    tier.spent_ns, tier.calls, tier.followed = 1000 * spent_us, 10, followed
    totals = active.totals
    tier.step_ended(totals)
    assert totals.own_ns == 1000 * expected_us
    assert (tier.spent_ns, tier.calls, tier.followed) == (0, 0, 0)
