"""Which bucket, unit or transfer a collective is for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddiag.capture.hooks import labels
from ddiag.capture.hooks.labels import Buckets, Scope
from ddiag.schema.phases import Op, Phase
from ddiag.schema.ring import NO_NAME

GROUP = 7


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    labels.reducers.clear()
    labels.plan([])
    labels.scopes.mine = Scope()


def label_of(op: int, group: int, phase: int, size: int) -> int:
    return labels.label_of(labels.scopes.mine, op, group, phase, size)


def reduced(size: int, phase: int = Phase.BACKWARD, op: int = Op.ALL_REDUCE) -> int:
    return label_of(op, GROUP, phase, size)


def test_buckets_of_equal_size_go_by_their_order() -> None:
    labels.reducers[GROUP] = [Buckets([400, 400, 100], [10, 11, 12])]
    assert [reduced(size) for size in (400, 400, 100)] == [10, 11, 12]
    assert [reduced(size) for size in (400, 400, 100)] == [10, 11, 12], "the next backward pass"


def test_a_pass_that_was_cut_short_does_not_shift_the_next() -> None:
    buckets = Buckets([400, 400], [10, 11])
    labels.reducers[GROUP] = [buckets]
    assert reduced(400) == 10
    buckets.rewind()
    assert reduced(400) == 10


def test_what_is_no_bucket_stays_unnamed() -> None:
    labels.reducers[GROUP] = [Buckets([400], [10])]
    assert reduced(8) == NO_NAME
    assert reduced(400, phase=Phase.OPTIMIZER) == NO_NAME
    assert reduced(400, op=Op.BROADCAST) == NO_NAME
    assert label_of(Op.ALL_REDUCE, GROUP + 1, Phase.BACKWARD, 400) == NO_NAME


def test_two_reducers_of_one_group() -> None:
    labels.reducers[GROUP] = [Buckets([400], [10]), Buckets([900], [20])]
    assert [reduced(size) for size in (900, 400)] == [20, 10]


def test_twins_of_the_same_sizes_are_told_apart() -> None:
    twins = [Buckets([400, 400], [10, 11]), Buckets([400, 400], [20, 21])]
    labels.reducers[GROUP] = twins
    for _ in range(2):
        for one in twins:
            one.rewind()
        assert [reduced(400) for _ in range(4)] == [10, 11, 20, 21]
    assert reduced(400) == 10, "a pass whose begin nobody saw"


def test_scopes_nest_and_win_over_buckets() -> None:
    labels.reducers[GROUP] = [Buckets([400], [10])]
    labels.push(1)
    labels.push(2)
    assert reduced(400) == 2
    labels.pop()
    assert reduced(400) == 1
    labels.pop()
    assert reduced(400) == 10


def test_planned_transfers_are_named_one_by_one() -> None:
    labels.plan([5, 6])
    assert label_of(Op.SEND, GROUP, Phase.NONE, 4) == 5
    assert label_of(Op.ALL_REDUCE, GROUP, Phase.NONE, 4) == NO_NAME
    assert label_of(Op.RECV, GROUP, Phase.NONE, 4) == 6
    assert label_of(Op.SEND, GROUP, Phase.NONE, 4) == NO_NAME


def test_the_native_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(labels, "told", lambda label, flags: told.append((label, flags)))
    labels.push(3)
    labels.set_no_sync(True)
    labels.set_no_sync(True)
    labels.pop()
    assert told == [(3, 0), (3, 32), (NO_NAME, 32)]
