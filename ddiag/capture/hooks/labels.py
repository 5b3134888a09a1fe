"""What a collective is for: the label of the scope it is issued in, or the bucket of a gradient reducer.

Labels are texts: ``ddp0/bucket3`` (bucket 3 of the first DDP module), ``ddp0/unused`` (which of its parameters were
used), ``fsdp/layers.0`` (a sharded unit by its module), ``zero/…`` (a DeepSpeed scope), ``pp/stage1/mb2`` (a stage of a
pipeline and its micro-batch).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ddiag.schema.phases import Flag, Op, Phase
from ddiag.schema.ring import NO_NAME

_BACKWARD, _ALL_REDUCE = int(Phase.BACKWARD), int(Op.ALL_REDUCE)
_SEND, _RECV = int(Op.SEND), int(Op.RECV)
_NO_SYNC = int(Flag.NO_SYNC)


class Scope:
    """What a thread's collectives are for."""

    __slots__ = ("flags", "label", "outer", "plan")

    def __init__(self) -> None:
        self.label = NO_NAME
        self.flags = 0
        self.outer: list[int] = []
        self.plan: list[int] = []
        """Labels of the transfers this thread issues next, the next one last."""


class _Scopes(threading.local):
    """One attribute, to be read once: that costs more than all of the scope's own."""

    def __init__(self) -> None:
        self.mine = Scope()


scopes = _Scopes()
"""Of the calling thread."""
told: Callable[[int, int], None] | None = None
"""The native kernel's ``set_context(label, flags)``, once it runs."""


def push(label: int) -> None:
    """Collectives the calling thread issues from now on are for *label*, until :func:`pop`."""
    scope = scopes.mine
    scope.outer.append(scope.label)
    scope.label = label
    if told is not None:
        told(label, scope.flags)


def pop() -> None:
    scope = scopes.mine
    scope.label = scope.outer.pop() if scope.outer else NO_NAME
    if told is not None:
        told(scope.label, scope.flags)


told_plan: Callable[[list[int]], None] | None = None
"""The native kernel's ``set_plan(labels)``, once it runs."""


def plan(transfers: list[int]) -> None:
    """The sends and receives the calling thread issues next have these labels, in order; [] ends it."""
    scopes.mine.plan = transfers[::-1]
    if told_plan is not None:
        told_plan(transfers)


def set_no_sync(inside: bool) -> None:
    scope = scopes.mine
    flags = scope.flags | _NO_SYNC if inside else scope.flags & ~_NO_SYNC
    if flags != scope.flags:
        scope.flags = flags
        if told is not None:
            told(scope.label, flags)


class Buckets:
    """What one gradient reducer reduces in every backward pass, in order: tells its buckets by their bytes.

    Each is given once a pass, so that two models of the same sizes are told apart.
    """

    __slots__ = ("_given", "_labels", "_next", "_sizes")

    def __init__(self, sizes: list[int], labels: list[int]) -> None:
        self._sizes = sizes
        self._labels = labels
        self.rewind()

    def rewind(self) -> None:
        """A backward pass begins."""
        self._next = 0
        self._given = [False] * len(self._sizes)

    def label(self, size: int) -> int:
        """The label of the next bucket of that size which was not given yet; -1 when there is none."""
        sizes, given, at = self._sizes, self._given, self._next
        for _ in sizes:
            if at >= len(sizes):
                at = 0
            if sizes[at] == size and not given[at]:
                self._next = at + 1
                given[at] = True
                return self._labels[at]
            at += 1
        return NO_NAME

    def again(self, size: int) -> int:
        """The same in a pass whose begin nobody saw (compiled code has no marks): the one before must be over."""
        if size not in self._sizes:
            return NO_NAME
        self.rewind()
        return self.label(size)


reducers: dict[int, list[Buckets]] = {}
"""By id of the group."""


def label_of(scope: Scope, op: int, group_id: int, phase: int, size: int) -> int:
    """The label of a collective that the thread of *scope* is about to issue."""
    if scope.plan and op in (_SEND, _RECV):
        return scope.plan.pop()
    label = scope.label
    if label >= 0 or op != _ALL_REDUCE or phase != _BACKWARD or group_id not in reducers:
        return label
    for find in (Buckets.label, Buckets.again):
        for one in reducers[group_id]:
            found = find(one, size)
            if found >= 0:
                return found
    return NO_NAME


def in_scope(name: Callable[[tuple[Any, ...]], int | None]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(before, after) of :func:`ddiag.capture.door.around` that label what the wrapped call issues.

    *name* gives the label's id from the call's arguments, or None for "leave it as it is".
    """

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool | None:
        label = name(args)
        if label is None:
            return None
        push(label)
        return True

    def after(_token: bool, _result: Any, _failed: bool) -> None:
        pop()

    return before, after
