"""What the sharded-data-parallel hooks share: a record for the scope of a unit, and its label on what it issues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ddiag.capture import recorder
from ddiag.capture.hooks import labels
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Kind, Unit

_UNIT = int(Kind.UNIT)
_UNSHARD, _PREFETCH = int(Unit.UNSHARD), int(Unit.PREFETCH)


class Scope(NamedTuple):
    active: Recorder
    token: int


class Prefetching:
    """How deep the training thread is inside a prefetch."""

    depth = 0


def scope(active: Recorder, unit: int, label: int, size: int = 0) -> Scope:
    """Begin; :func:`done` ends it."""
    if unit == _UNSHARD and Prefetching.depth:
        unit = _PREFETCH
    labels.push(label)
    return Scope(active, active.begin_span(_UNIT, unit, label, -1, size))


def done(opened: Scope, _result: Any, failed: bool) -> None:
    labels.pop()
    opened.active.complete(opened.token, not failed)


def prefetch(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool | None:
    if recorder.current is None:
        return None
    Prefetching.depth += 1
    return True


def prefetched(_token: bool, _result: Any, _failed: bool) -> None:
    Prefetching.depth -= 1


def opening(
    unit: Unit, name: Callable[[Recorder, Any], int], wanted: Callable[[Any], bool] = lambda _owner: True
) -> Callable[..., Scope | None]:
    """The *before* of a method of a unit: *name* gives the label's id, *wanted* whether the call does anything."""
    number = int(unit)

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Scope | None:
        active = recorder.current
        if active is None or not wanted(args[0]):
            return None
        return scope(active, number, name(active, args[0]))

    return before
